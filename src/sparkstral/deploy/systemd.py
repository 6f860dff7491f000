"""`deploy systemd`: a unit that checks the machine, serves, and comes back after a crash and after a boot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkstral.deploy.steps import Command, Deployment, FileToWrite
from sparkstral.errors import ConfigError

UNIT = "sparkstral.service"
SYSTEM_FOLDER = Path("/etc/systemd/system")
_FORBIDDEN = set("\n\"'\\%$;")  # of what systemd gives a meaning, or that would need quotes


@dataclass(frozen=True, slots=True)
class Service:
    program: Path  # sparkstral itself
    model: str
    host: str
    port: int
    user: str
    home: Path
    per_user: bool = False  # a unit of the user's own: no root, and it needs lingering to outlive the login

    def __post_init__(self) -> None:
        for word in (str(self.program), self.model, self.host, self.user, str(self.home)):
            if _FORBIDDEN & set(word) or " " in word:
                raise ConfigError(f"{word!r} cannot stand in a systemd unit; use a path or name of plain characters.")

    @property
    def path(self) -> Path:
        return (self.home / ".config" / "systemd" / "user" if self.per_user else SYSTEM_FOLDER) / UNIT

    def unit(self) -> str:
        where = f"--host {self.host} --port {self.port}"
        secrets = "%h/.config/sparkstral/env" if self.per_user else "/etc/sparkstral/env"
        identity = "" if self.per_user else f"User={self.user}\n"
        # network-online: a first start downloads. Lingering user units have no such target.
        network = "" if self.per_user else "Wants=network-online.target\nAfter=network-online.target\n"
        return f"""[Unit]
Description=sparkstral: Mistral Small 4 on this machine
Documentation=https://huggingface.co/mistralai/Mistral-Small-4-119B-2603-NVFP4
{network}# Five failed starts within half an hour are enough: what is broken must not load 70 GB in a loop.
StartLimitIntervalSec=1800
StartLimitBurst=5

[Service]
Type=exec
{identity}# What must not stand in a unit that all can read: HF_TOKEN=... for a gated model.
EnvironmentFile=-{secrets}
Environment=HF_HOME={self.home}/.cache/huggingface
# Nothing is loaded on a machine that cannot serve; what is wrong stands in the journal, with its remedy.
ExecStartPre={self.program} doctor {self.model} {where}
ExecStart={self.program} serve {self.model} {where}
TimeoutStartSec=300
Restart=on-failure
RestartSec=15
# Settings that this model or machine cannot have (exit code 2) do not become right by trying again.
RestartPreventExitStatus=2
# The server ends its answers and its engine itself; what is left after a minute is killed, engine included.
KillMode=mixed
TimeoutStopSec=60
NoNewPrivileges=yes
PrivateTmp=yes

[Install]
WantedBy={"default.target" if self.per_user else "multi-user.target"}
"""


def plan_systemd(service: Service, *, uninstall: bool = False) -> Deployment:
    control = ("systemctl", "--user") if service.per_user else ("systemctl",)
    reload = Command((*control, "daemon-reload"), "systemd reads the unit's folder again")
    if uninstall:
        return Deployment(
            f"Stop {UNIT} and remove it; downloads stay",
            commands=(
                Command((*control, "disable", "--now", UNIT), "stop it, and no more at boot"),
                Command(("rm", str(service.path)), "the unit"),
                reload,
            ),
        )
    linger = Command(("loginctl", "enable-linger", service.user), "it runs without a login, from boot on")
    return Deployment(
        f"{service.model} as {UNIT} on {service.host}:{service.port}, from boot on",
        files=(FileToWrite(service.path, service.unit()),),
        commands=(
            reload,
            *((linger,) if service.per_user else ()),
            Command((*control, "enable", "--now", UNIT), "start it now and at every boot"),
        ),
        notes=("Follow it: sparkstral logs --follow; is it ready: sparkstral status.",),
    )
