"""The server that runs on this machine: which process listens on a port, what it holds, and where its words go.

Owns the reading of /proc (proc(5): net/tcp, PID/fd, PID/stat, PID/status). What the caller may not read is as if it
were not there, so that a server of another user is found only by root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LISTENING = "0A"  # of net/tcp
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Running:
    process_id: int
    command: str  # its arguments, in one line


def find_listener(port: int, proc: Path = PROC) -> Running | None:
    """The process that listens on TCP `port`, if it can be seen."""
    inodes = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    for folder in _processes(proc):
        with suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with suppress(OSError):
                    if os.readlink(descriptor) in inodes:
                        words = (folder / "cmdline").read_text(errors="replace").split("\0")
                        return Running(int(folder.name), " ".join(words).strip())
    return None


def is_taken(port: int, proc: Path = PROC) -> bool:
    """Whether anybody listens there, seen or not."""
    return any(True for _ in _inodes(port, proc))


def _inodes(port: int, proc: Path) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def family(process_id: int, proc: Path = PROC) -> tuple[int, ...]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for folder in _processes(proc):
        with suppress(OSError, ValueError, IndexError):
            # The second field is a name in parentheses, which may hold anything; the parent is the second after it.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = [process_id]
    for each in found:
        found += children.get(each, [])
    return tuple(found)


def held_bytes(process_ids: tuple[int, ...], proc: Path = PROC) -> int:
    """Of memory of their own: what comes back when they end."""
    total = 0
    for process_id in process_ids:
        with suppress(OSError):
            for line in (proc / str(process_id) / "status").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in ("RssAnon", "RssShmem"):
                    total += int(rest.split()[0]) * 1024
    return total


def alive(process_ids: tuple[int, ...], proc: Path = PROC) -> tuple[int, ...]:
    """Those that have not ended; what waits for its parent to look (a zombie) has."""
    found = []
    for process_id in process_ids:
        with suppress(OSError, IndexError):
            if (proc / str(process_id) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(process_id)
    return tuple(found)


def log_file(process_id: int, proc: Path = PROC) -> Path | None:
    """The file that the process writes its log to, if it is one."""
    with suppress(OSError):
        target = (proc / str(process_id) / "fd" / "2").resolve()
        return target if target.is_file() else None
    return None


def _processes(proc: Path) -> Iterator[Path]:
    return (folder for folder in proc.iterdir() if folder.name.isdigit())
