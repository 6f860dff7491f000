"""`deploy cluster`: two or more Sparks as one server, through vLLM on Ray, tensor parallel over the ConnectX link.

Owns what each node runs, what is looked at of the link before, and the plan of a node. sparkstral's own engine serves
one machine, which holds this model: a cluster is for longer contexts and more clients, not for the model to fit.
No run on two Sparks is known to us: what is here follows vLLM's and NCCL's documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from sparkstral.checkpoint.facts import ModelFacts
from sparkstral.config import SERVED_MODEL_NAME
from sparkstral.deploy.options import Option, as_array
from sparkstral.deploy.steps import Command, Deployment, FileToWrite
from sparkstral.deploy.vllm import MODERN_IMAGE, MODERN_LENGTH, UTILIZATION, Vllm, plan_of
from sparkstral.doctor.check import Check, absent, bad, ok, warn
from sparkstral.errors import ConfigError
from sparkstral.memory.plan import MemoryPlan

CONTAINER = "sparkstral-ray"
RAY_PORT = 6379
RAY = "ray[default]>=2.48,<3"  # vLLM's images no longer bring it
MIN_LINK_MBIT = 100_000
GOOD_MTU = 9000
_INTERFACE = re.compile(r"[A-Za-z0-9._-]{1,15}")
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")


@dataclass(frozen=True, slots=True)
class Cluster:
    model_folder: Path  # the same on each node
    num_nodes: int
    head: str  # its address on the link
    interface: str  # of the link, the same name on each node
    port: int
    max_model_len: int = MODERN_LENGTH
    utilization: float = UTILIZATION

    def __post_init__(self) -> None:
        if self.num_nodes not in (2, 4, 8):
            raise ConfigError(
                f"--nodes is {self.num_nodes}; the model's 32 heads and 128 experts are dealt out evenly to 2, 4 or 8."
            )
        if not _ADDRESS.fullmatch(self.head):
            raise ConfigError(f"--head {self.head!r} is no address; give that of the head on the link: 192.168.100.10.")
        if not _INTERFACE.fullmatch(self.interface):
            raise ConfigError(f"--interface {self.interface!r} is no network interface; `ip -br link` lists them.")

    @property
    def vllm(self) -> Vllm:
        return Vllm(self.model_folder, True, self.max_model_len, self.port, utilization=self.utilization)

    def container(self) -> tuple[Option, ...]:
        source, inside = self.vllm.mount()
        target = "/repository" if inside.startswith("/repository") else "/model"
        return (
            Option("--gpus", "all", "the GPU"),
            Option("--network", "host", "Ray and NCCL open ports of their own, and must see the link itself"),
            Option("--ipc", "host", "processes of vLLM share memory with each other"),
            Option("--device", "/dev/infiniband", "RDMA over the ConnectX card; without it NCCL falls back to TCP"),
            Option("--ulimit", "memlock=-1", "RDMA pins its buffers"),
            Option("--cap-add", "IPC_LOCK", "likewise"),
            Option("--volume", f"{source}:{target}:ro", "the model's files: a copy on each node, at the same place"),
            Option("--env", "VLLM_HOST_IP=$ip", "this node on the link: each node's own"),
            Option("--env", f"NCCL_SOCKET_IFNAME={self.interface}", "where NCCL's processes meet: the link, not Wi-Fi"),
            Option("--env", f"GLOO_SOCKET_IFNAME={self.interface}", "the same for PyTorch's own messages"),
            Option("--env", "NCCL_DEBUG=WARN", "NCCL says when it falls back"),
            Option("--entrypoint", "", "the image's own is another program's"),
        )  # fmt: skip

    def flags(self) -> tuple[Option, ...]:
        spread = {
            "--host": ("this machine alone: the container has the host's network", "127.0.0.1"),
            "--tensor-parallel-size": ("each matrix is dealt out to the nodes", str(self.num_nodes)),
        }
        options = []
        for option in self.vllm.flags():
            why, value = spread.get(option.flag, (option.why, option.value))
            options.append(replace(option, why=why, value=value))
        options.append(Option("--distributed-executor-backend", "ray", "workers on the other nodes, through Ray"))
        return tuple(options)

    def command(self) -> tuple[str, ...]:
        return ("vllm", "serve", self.vllm.mount()[1], *(word for option in self.flags() for word in option.words))

    def node_script(self, *, is_head: bool) -> str:
        start = (
            f"ray start --head --block --node-ip-address=$ip --port={RAY_PORT}"
            if is_head
            else f"ray start --block --node-ip-address=$ip --address={self.head}:{RAY_PORT}"
        )
        role = "head" if is_head else "worker"
        return "\n".join(
            (
                "#!/usr/bin/env bash",
                f"# The {role} of {self.num_nodes} Sparks. Written by sparkstral deploy cluster. The head comes first.",
                "set -euo pipefail",
                f"ip=$(ip -4 -o addr show dev {self.interface} | awk '{{print $4; exit}}' | cut -d/ -f1)",
                f'[ -n "$ip" ] || {{ echo "{self.interface} has no address; give it one (netplan)" >&2; exit 1; }}',
                as_array("container", self.container()),
                f"docker rm --force {CONTAINER} >/dev/null 2>&1 || true",
                f'docker run --detach --name {CONTAINER} "${{container[@]}}" {MODERN_IMAGE} \\',
                f'  bash -c "command -v ray >/dev/null || pip install --quiet \'{RAY}\'; {start}"',
                "",
            )
        )

    def serve_script(self) -> str:
        return "\n".join(
            (
                "#!/usr/bin/env bash",
                "# On the head, when all nodes have joined. Written by sparkstral deploy cluster.",
                "set -euo pipefail",
                f"until docker exec {CONTAINER} ray status >/dev/null 2>&1; do sleep 2; done",
                f"docker exec {CONTAINER} ray status  # must list {self.num_nodes} nodes with a GPU each",
                as_array("options", self.flags()),
                "# What it says goes where the container's own words go: docker logs.",
                f"docker exec --detach {CONTAINER} bash -c 'exec \"$@\" >/proc/1/fd/1 2>&1' serve \\",
                f'  vllm serve {self.vllm.mount()[1]} "${{options[@]}}"',
                f'echo "Ready when this answers: curl --fail http://127.0.0.1:{self.port}/v1/models"',
                "",
            )
        )

    def check_script(self) -> str:
        return "\n".join(
            (
                "#!/usr/bin/env bash",
                "# On each worker, before anything starts: does it reach the head over the link, and how fast?",
                "# Written by sparkstral deploy cluster.",
                "set -uo pipefail",
                f"link={self.interface}",
                'cd "/sys/class/net/$link" || { echo "no interface $link: ip -br link lists them"; exit 1; }',
                'echo "$link: $(cat operstate), $(cat speed) Mbit/s, MTU $(cat mtu)"',
                f"ping -c 3 -q {self.head} || {{ echo 'the head does not answer: addresses, cable'; exit 1; }}",
                "# A whole frame of 9,000 bytes must pass undivided, or the link runs at a fraction of its speed.",
                f'ping -c 3 -q -M do -s 8972 {self.head} || echo "no jumbo frames: ip link set $link mtu 9000"',
                "command -v ibdev2netdev >/dev/null && ibdev2netdev",
                f"timeout 3 bash -c '</dev/tcp/{self.head}/{RAY_PORT}' 2>/dev/null \\",
                f"  && echo 'Ray answers' || echo 'Ray is not up on {self.head}:{RAY_PORT} yet (head.sh starts it)'",
                "",
            )
        )


def check_link(interface: str, sys_class_net: Path = Path("/sys/class/net")) -> Check:
    """The interface on this node: is it there, up, fast, with large frames?"""
    name, folder = f"link {interface}", sys_class_net / interface
    if not folder.is_dir():
        there = ", ".join(sorted(path.name for path in sys_class_net.glob("*"))) or "none"
        return absent(name, f"no such interface on this machine; it has {there}", "Give the ConnectX port: --interface")
    state, speed, mtu = (_read(folder / file) for file in ("operstate", "speed", "mtu"))
    found = f"{state or '?'}, {speed or '?'} Mbit/s, MTU {mtu or '?'}"
    if state != "up":
        return bad(name, found, "Plug the QSFP cable in at both ends, and give both nodes an address (netplan).")
    if speed.lstrip("-").isdigit() and int(speed) < MIN_LINK_MBIT:
        return bad(name, found, "This is not the ConnectX port: tensor parallelism needs 100 Gbit/s or more.")
    if mtu.isdigit() and int(mtu) < GOOD_MTU:
        return warn(name, found, f"sudo ip link set {interface} mtu {GOOD_MTU}, on each node.")
    return ok(name, found)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # also of a port without a cable, which does not tell its speed
        return ""


def plan_of_node(cluster: Cluster, facts: ModelFacts) -> MemoryPlan:
    """What one node holds: its share of the weights, and all of the latent cache, which has no heads to deal out."""
    lines = tuple(
        replace(
            line,
            num_bytes=-(-line.num_bytes // cluster.num_nodes),
            how_known=f"1/{cluster.num_nodes} of it, {line.how_known}",
        )
        for line in facts.stored
    )
    return plan_of(cluster.vllm, replace(facts, stored=lines))


def plan_cluster(cluster: Cluster, folder: Path) -> Deployment:
    """All scripts; they are copied to the nodes by whoever may."""
    names = {
        "check.sh": cluster.check_script(),
        "head.sh": cluster.node_script(is_head=True),
        "worker.sh": cluster.node_script(is_head=False),
        "serve.sh": cluster.serve_script(),
    }
    return Deployment(
        f"{SERVED_MODEL_NAME} on {cluster.num_nodes} Sparks, {cluster.max_model_len:,} tokens",
        files=tuple(FileToWrite(folder / name, content, 0o755) for name, content in names.items()),
        notes=(
            f"1. On each worker: {folder}/check.sh    2. On the head: {folder}/head.sh",
            f"3. On each worker: {folder}/worker.sh   4. On the head: {folder}/serve.sh",
            "The nodes must have the same image, driver and files; sparkstral doctor tells on each.",
            f"Stop: docker rm --force {CONTAINER} on each.",
        ),
    )


def apply_role(role: str, folder: Path) -> Command:
    return Command(("bash", str(folder / f"{role}.sh")), f"this node's part: {role}")
