"""How much memory this process may still take.

Owns the reading of /proc and of control groups; must not know what the memory is for. Reclaimable page cache
counts as free, in the kernel's own estimate. Sources: proc(5) for MemAvailable; the kernel's
admin-guide/cgroup-v2 (memory.max, memory.current, memory.stat) and cgroup-v1/memory (memory.limit_in_bytes
and so on).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkstral.errors import MemoryPlanError

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """Bytes that can be taken, and who says so."""

    num_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The kernel's MemTotal and MemAvailable."""

    total_bytes: int
    available_bytes: int


def read_host(proc: Path = PROC) -> HostMemory | None:
    """None where the kernel does not tell."""
    found: dict[str, int] = {}
    for line in (_read(proc / "meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(rest.split()[0]) * 1024
            if len(found) == 2:  # they stand among the first three lines
                return HostMemory(found["MemTotal"], found["MemAvailable"])
    return None


def host_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> AvailableMemory:
    """The least of what the host has left and what each control group around this process still allows.

    For a GPU with memory of its own, the caller has numbers from its driver; for one that shares the host's
    (GB10), the lesser of both counts. Raises MemoryPlanError where /proc tells nothing.
    """
    candidates = (_host(proc), *_control_groups(proc, cgroup))
    return min(candidates, key=lambda available: available.num_bytes)


def _host(proc: Path) -> AvailableMemory:
    found = read_host(proc)
    if found is None:
        raise MemoryPlanError(
            f"{proc / 'meminfo'} does not tell MemAvailable; Linux 3.14 or newer with /proc is needed to plan."
        )
    return AvailableMemory(found.available_bytes, "MemAvailable")


def _control_groups(proc: Path, cgroup: Path) -> Iterator[AvailableMemory]:
    for line in (_read(proc / "self" / "cgroup") or "").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            names, root = ("memory.max", "memory.current", "inactive_file"), cgroup
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = cgroup / "memory"
        else:
            continue
        for group in _group_and_parents(root, path):
            limit, usage = (_number(group / name) for name in names[:2])
            if limit is not None and usage is not None:
                reclaimable = _stat(group / "memory.stat", names[2])
                yield AvailableMemory(max(0, limit - usage + reclaimable), f"limit of control group {group}")


def _group_and_parents(root: Path, path: str) -> Iterator[Path]:
    """A group, and the groups around it up to the root of the mount; a container may see only some of
    them."""
    group = root / path.lstrip("/")
    while True:
        yield group
        if group == root:
            return
        group = group.parent


def _stat(path: Path, name: str) -> int:
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    """None for an absent file and for "max"."""
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
