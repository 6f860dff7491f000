"""Python, packages, container, memory, disk, port and clock: what the host brings along."""

from __future__ import annotations

import errno
import shutil
import socket
from datetime import UTC, datetime
from pathlib import Path

from sparkstral.doctor.check import Check, absent, bad, ok, warn
from sparkstral.doctor.machine import Machine, is_writable
from sparkstral.memory.probe import host_memory
from sparkstral.units import GiB, format_bytes

PYTHONS = ((3, 11), (3, 13))
MIN_GLIBC = (2, 28)  # what the wheels of PyTorch and Triton are built for (manylinux_2_28)
MIN_MISTRAL_COMMON = "1.13"
MODEL_BYTES = 72 * GiB  # weights, least cache and workspace of the full model (sparkstral plan)
LARGE_CACHE_BYTES = 32 * GiB
USED_SWAP_BYTES = GiB
OLDEST_NOW = datetime(2026, 11, 1, tzinfo=UTC)  # before this version was made: certificates would not be valid yet
_CONTAINER_MARKS = ("docker", "containerd", "kubepods", "libpod", "lxc")


def check_python(machine: Machine) -> Check:
    found = f"Python {'.'.join(map(str, machine.python))} on {machine.system}"
    if not PYTHONS[0] <= machine.python <= PYTHONS[1]:
        return bad("Python", found, "Use Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python3.12 serve.")
    if not machine.system.startswith("Linux"):
        return warn("Python", found, "Serve on Linux; here only tools are of use.")
    return ok("Python", found)


def check_mistral_common(machine: Machine) -> Check:
    name, version = "mistral-common", machine.package_version("mistral-common")
    remedy = f'.venv/bin/pip install --upgrade "mistral-common>={MIN_MISTRAL_COMMON},<2"'
    if version is None:
        return bad(name, "not installed", remedy)
    if machine.knows_tekken_v15() is not True:
        return bad(name, f"{version} does not know tekken v15, the model's tokenizer", remedy)
    return ok(name, f"{version} knows tekken v15")


def container_of(machine: Machine) -> str | None:
    """The kind of container that this runs in, as far as it can be seen."""
    if machine.exists(".dockerenv"):
        return "docker"
    if machine.exists("run/.containerenv"):
        return "podman"
    groups = machine.read("proc/1/cgroup")
    return next((mark for mark in _CONTAINER_MARKS if mark in groups), None)


def check_libc(machine: Machine) -> Check:
    name, version, container = "C library and container", machine.glibc_version(), container_of(machine)
    where = f"in a container ({container})" if container else "no container"
    if version is None:
        return bad(
            name, f"no glibc, {where}", "Use a system with glibc (Ubuntu, Debian): no wheels of PyTorch are for others."
        )
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_GLIBC:
        return bad(name, f"glibc {version}, {where}", "PyTorch and Triton need glibc 2.28 or newer: use Ubuntu 24.04.")
    failure = machine.device.failure or ""
    if "dl-tls" in failure or "_dl_add_to_slotinfo" in failure:
        return bad(
            name, f"glibc {version}, {where}: its loader fails in a child process ({failure})",
            "This image and the host's driver do not go together. Use this project's own: sparkstral deploy docker.",
        )  # fmt: skip
    if container and machine.exists("proc/driver/nvidia/version") and not machine.exists("dev/nvidiactl"):
        return bad(
            name, f"glibc {version}, {where}: the host has an NVIDIA driver and the container no GPU",
            "Start it with --gpus all (docker) or the deploy section of deploy/compose.yaml.",
        )  # fmt: skip
    return ok(name, f"glibc {version}, {where}")


def check_memory(machine: Machine) -> Check:
    name, info = "memory", machine.meminfo()
    if "MemTotal" not in info or "MemAvailable" not in info:
        return absent(name, "/proc/meminfo does not tell")
    available = host_memory(machine.root / "proc", machine.root / "sys" / "fs" / "cgroup")
    found = f"{format_bytes(available.num_bytes)} of {format_bytes(info['MemTotal'])} available ({available.source})"
    shares_memory = machine.device.capability == (12, 1)
    if shares_memory and available.num_bytes < MODEL_BYTES:
        return bad(
            name, found,
            f"The full model takes {format_bytes(MODEL_BYTES)} at least. Stop what holds memory: sparkstral plan "
            "--live names it.",
        )  # fmt: skip
    return ok(name, found)


def check_swap(machine: Machine) -> Check:
    name, info = "swap", machine.meminfo()
    if "SwapTotal" not in info:
        return absent(name, "/proc/meminfo does not tell")
    used = info["SwapTotal"] - info.get("SwapFree", 0)
    found = f"{format_bytes(used)} of {format_bytes(info['SwapTotal'])} used"
    if used >= USED_SWAP_BYTES:
        return warn(
            name, found,
            "Memory was short here, and what was swapped out comes back slowly: stop other programs, then sudo swapoff "
            "-a && sudo swapon -a.",
        )  # fmt: skip
    return ok(name, found)


def check_page_cache(machine: Machine) -> Check:
    name, info = "page cache", machine.meminfo()
    if "Cached" not in info:
        return absent(name, "/proc/meminfo does not tell")
    found = f"{format_bytes(info['Cached'])}, of which the kernel gives back what is asked for"
    if machine.device.capability == (12, 1) and info["Cached"] >= LARGE_CACHE_BYTES:
        return warn(
            name, found,
            "sparkstral counts it as free and reads past it; vLLM does not: before `deploy vllm`, sync && echo 3 | "
            "sudo tee /proc/sys/vm/drop_caches.",
        )  # fmt: skip
    return ok(name, found)


def check_hub_cache(machine: Machine) -> Check:
    name = "folder of downloads"
    home = Path(machine.environ.get("HF_HOME") or Path(machine.environ.get("HOME", "/")) / ".cache" / "huggingface")
    folder = Path(machine.environ.get("HF_HUB_CACHE") or home / "hub")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = format_bytes(shutil.disk_usage(existing).free)
    if not existing.is_dir() or not is_writable(existing):
        return bad(name, f"{folder} cannot be written", "Make it writable, or name another folder with HF_HUB_CACHE.")
    return ok(name, f"{folder}, {free} free")


def check_port(host: str, port: int) -> Check:
    name = "port"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        other = port + 1 if port < 65535 else port - 1
        if error.errno == errno.EADDRINUSE:
            return bad(
                name, f"{host}:{port} is in use",
                "`sparkstral status` tells whether it is sparkstral, `sparkstral stop` ends it; or choose another: "
                f"--port {other}",
            )  # fmt: skip
        return bad(name, f"{host}:{port}: {error.strerror}", "Give an address of this machine, and a port above 1023.")
    except (OverflowError, ValueError, TypeError):
        return bad(name, f"{host}:{port} is no address", "Give an address of this machine: --host 127.0.0.1.")
    return ok(name, f"{host}:{port} is free")


def check_clock(machine: Machine) -> Check:
    name, now = "clock", datetime.fromtimestamp(machine.now(), UTC)
    found = now.isoformat(timespec="minutes")
    if now < OLDEST_NOW:
        return bad(
            name, f"{found}: before this program was made",
            "Set it: sudo timedatectl set-ntp true. A wrong clock breaks downloads, as certificates are not valid yet.",
        )  # fmt: skip
    synchronised = machine.run(["timedatectl", "show", "-p", "NTPSynchronized", "--value"]).strip()
    if not synchronised:
        return absent(name, f"{found}; nobody tells whether it is synchronised")
    if synchronised != "yes":
        return warn(name, f"{found}, not synchronised", "sudo timedatectl set-ntp true")
    return ok(name, f"{found}, synchronised")
