"""The machine as the doctor sees it: each way to the outside is a field that a test puts something else into.

Owns how things are asked; must not know which answers are good ones.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

import sparkstral
from sparkstral.doctor.disk import read_speed

_TIMEOUT_S = 120.0  # a first import of PyTorch from a cold disk takes half of it


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What device.py found; None where it found nothing."""

    torch: str | None = None
    cuda: str | None = None  # that PyTorch was built for
    gpu: str | None = None
    capability: tuple[int, int] | None = None
    architectures: tuple[str, ...] = ()  # in PyTorch's own binaries
    triton: str | None = None
    ptxas: str | None = None
    ptxas_error: str | None = None  # empty: it assembles for GB10
    bandwidth_bytes_per_s: float | None = None
    failure: str | None = None  # why the rest is missing


def run(command: Sequence[str]) -> str:
    """What a command prints; nothing where there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def ask_device() -> DeviceFacts:
    # What was imported for Triton's interpreter cannot be asked.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "sparkstral.doctor.device"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        return DeviceFacts(failure=str(error))
    return read_facts(done.stdout, done.stderr, done.returncode)


def read_facts(out: str, err: str, code: int) -> DeviceFacts:
    """From device.py's output, or from its death."""
    if code:
        said = next(iter(err.strip().splitlines()[-1:]), "it said nothing")
        return DeviceFacts(failure=f"the process that asks PyTorch ended with {code}: {said}")
    found = json.loads(out.strip().splitlines()[-1])
    found["capability"] = tuple(found["capability"]) if "capability" in found else None
    found["architectures"] = tuple(found.get("architectures", ()))
    return DeviceFacts(**found)


def package_version(name: str) -> str | None:
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return None


def knows_tekken_v15() -> bool | None:
    """Whether mistral-common has this version of the tokenizer; None where it cannot be imported."""
    try:
        from mistral_common.tokens.tokenizers.base import TokenizerVersion
    except ImportError:
        return None
    return "v15" in {version.value for version in TokenizerVersion}


def glibc_version() -> str | None:
    name, version = platform.libc_ver()
    return version if name == "glibc" and version else None


def is_writable(folder: Path) -> bool:
    """By trying: on a file system that is mounted read-only, or for root, permissions do not tell."""
    probe = folder / f".sparkstral-{id(folder)}"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


@dataclass
class Machine:
    root: Path = Path("/")  # of /proc, /run and so on
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    run: Callable[[Sequence[str]], str] = run
    ask_device: Callable[[], DeviceFacts] = ask_device
    package_version: Callable[[str], str | None] = package_version
    knows_tekken_v15: Callable[[], bool | None] = knows_tekken_v15
    glibc_version: Callable[[], str | None] = glibc_version
    python: tuple[int, int] = sys.version_info[:2]
    system: str = f"{platform.system()} {platform.machine()}"
    now: Callable[[], float] = time.time
    read_speed: Callable[[Path], float | None] = read_speed  # bytes a second past the page cache
    package: Path = Path(sparkstral.__file__).parent

    @cached_property
    def device(self) -> DeviceFacts:
        return self.ask_device()

    def read(self, path: str) -> str:
        """The text of a file below `root`; nothing if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def meminfo(self) -> dict[str, int]:
        """/proc/meminfo in bytes."""
        found = {}
        for line in self.read("proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                found[name] = int(words[0]) * 1024
        return found

    @cached_property
    def gpu_query(self) -> dict[str, str]:
        """What nvidia-smi says of the first GPU; fields that it does not know ([N/A]) are left out."""
        fields = (
            "name", "driver_version", "pstate", "temperature.gpu", "power.draw", "clocks.sm", "clocks.max.sm",
            "clocks_event_reasons.active",
        )  # fmt: skip
        out = self.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        first = next(iter(out.splitlines()), "")
        values = [value.strip() for value in first.split(",")]
        if len(values) != len(fields):
            return {}
        return {name: value for name, value in zip(fields, values, strict=True) if not value.startswith("[")}
