"""Who holds the memory now: the processes with the most of it on the host, and those on the GPU.

Owns the reading of /proc/*/status and of what nvidia-smi lists; must not know why it is asked. On a machine whose GPU
shares the host's memory a process' GPU bytes are not in its resident size, so both lists are needed. A process that
ends meanwhile, or that does not let itself be read, is left out.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkstral.memory.probe import PROC
from sparkstral.units import GiB, MiB, format_gib

_MIN_HOST_BYTES = 256 * MiB  # of a process that is worth a line
LARGE_BYTES = 4 * GiB
"""What a process must hold on the GPU to be named as another large model: small ones draw the desktop."""

_GPU_QUERY = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
_GPU_MEMORY_QUERY = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
_TIMEOUT_S = 10.0
_MAX_NAME = 60

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class Holder:
    process_id: int
    name: str
    num_bytes: int
    where: str  # host or GPU

    def __str__(self) -> str:
        return f"{self.name} (pid {self.process_id}, {format_gib(self.num_bytes)} of {self.where} memory)"


def host_holders(proc: Path = PROC, most: int = 5) -> tuple[Holder, ...]:
    """The processes with the most resident memory of their own, the largest first."""
    found = [
        Holder(int(folder.name), _name(folder), num_bytes, "host")
        for folder in proc.iterdir()
        if folder.name.isdigit() and (num_bytes := _resident_bytes(folder)) >= _MIN_HOST_BYTES
    ]
    return tuple(sorted(found, key=lambda holder: -holder.num_bytes)[:most])


def gpu_holders(proc: Path = PROC, run: Run | None = None) -> tuple[Holder, ...]:
    """The processes that nvidia-smi lists, the largest first; none where it is not there or says nothing."""
    found = []
    for line in (run or _run)(_GPU_QUERY).splitlines():
        process_id, _, mebibytes = (part.strip() for part in line.partition(","))
        if process_id.isdigit():
            num_bytes = int(mebibytes) * MiB if mebibytes.isdigit() else 0  # [N/A] on some drivers
            found.append(Holder(int(process_id), _name(proc / process_id), num_bytes, "GPU"))
    return tuple(sorted(found, key=lambda holder: -holder.num_bytes))


def gpu_free_bytes(run: Run | None = None) -> int | None:
    """Of a GPU with memory of its own; None where there is none, or where it shares the host's ([N/A])."""
    first = next(iter((run or _run)(_GPU_MEMORY_QUERY).splitlines()), "").strip()
    return int(first) * MiB if first.isdigit() else None


def advice(holders: Sequence[Holder], own_process_ids: Sequence[int] = ()) -> str:
    """A sentence about other large models, or nothing."""
    large = [h for h in holders if h.num_bytes >= LARGE_BYTES and h.process_id not in own_process_ids]
    if not large:
        return ""
    return f"Another large model must be stopped first: {', '.join(map(str, large))}."


def _resident_bytes(folder: Path) -> int:
    """RssAnon and RssShmem of a process: what ends with it. Source: proc(5), status."""
    total = 0
    for line in _read(folder / "status").splitlines():
        key, _, rest = line.partition(":")
        if key in ("RssAnon", "RssShmem"):
            total += int(rest.split()[0]) * 1024
    return total


def _name(folder: Path) -> str:
    """The program, and what an interpreter runs; never other arguments, which may be keys."""
    words = [word for word in _read(folder / "cmdline").split("\0") if word]
    if not words:
        return _read(folder / "comm").strip() or "?"
    name = Path(words[0]).name
    if name.startswith("python"):
        name = f"{name} {_script(words[1:])}".strip()
    return name[:_MAX_NAME]


def _script(words: Sequence[str]) -> str:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("-m", "-c"):
            return following if word == "-m" else ""
        if not word.startswith("-"):
            return Path(word).name
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
