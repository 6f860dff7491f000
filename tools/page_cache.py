"""How far loading raises the machine's page cache: full of other files, and with the model's own files in it.

    python -m tools.page_cache FOLDER OTHER_FILE... --json OUT.json [--device cpu]

FOLDER is a checkpoint of more than 4 GiB, OTHER_FILE any files that fill the cache first. Needs no rights: what of the
model's files is in the cache is given back by posix_fadvise, and the figures are the kernel's (/proc/meminfo, mincore).
On a CPU both of the loader's ways are taken: its own, through the cache, and that of a GPU, past it, with copies to the
weights' memory in the place of those to a device.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from sparkstral.bench.environment import describe_run, write_report
from sparkstral.bench.load import count_cached_bytes, highest_growth
from sparkstral.checkpoint.load import allocate_buffers
from sparkstral.checkpoint.plan import plan_load
from sparkstral.checkpoint.stream import Copier, fill
from sparkstral.units import GiB

LIMIT_BYTES = 4 * GiB
_CHUNK_BYTES = 16 << 20


def read_through(paths: list[Path]) -> None:
    """Into the page cache."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(_CHUNK_BYTES):
                pass


def forget(paths: list[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def meminfo() -> dict[str, int]:
    fields = ("MemTotal", "MemAvailable", "Cached")
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0][:-1]: int(words[1]) * 1024 for words in lines if words[0][:-1] in fields}


def copy_here(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
    """In the place of a GPU's copies."""
    for target, source in pairs:
        target.copy_(source)
    return lambda: None


def measure(folder: Path, others: list[Path], device: torch.device) -> list[dict[str, Any]]:
    plan = plan_load(folder)
    own = list(plan.file_bytes)
    ways: dict[str, Callable[[], Copier] | None] = {"to the device": None}
    if device.type == "cpu":
        ways = {"a CPU's: through the cache": None, "a GPU's: O_DIRECT": lambda: copy_here}
    rows = []
    for way, make_copier in ways.items():
        for name in ("cache full of other files", "the model's own files cached"):
            forget(own)
            read_through(others if name.startswith("cache") else own)
            before = meminfo()
            cached = {"others_cached_bytes": count_cached_bytes(others), "own_cached_bytes": count_cached_bytes(own)}
            buffers = allocate_buffers(plan, device)
            with highest_growth() as growth:
                begin = time.monotonic()
                fill(buffers, plan, make_copier=make_copier)
                seconds = time.monotonic() - begin
            del buffers
            grown = growth.page_cache_bytes
            faults = [] if grown < LIMIT_BYTES else [f"the page cache grew by {grown / GiB:.2f} GiB"]
            rows.append(
                {
                    "name": name,
                    "way": way,
                    "file_bytes": sum(plan.file_bytes.values()),
                    "before": before | cached,
                    "after": meminfo() | {"own_cached_bytes": count_cached_bytes(own)},
                    "seconds": seconds,
                    "page_cache_growth_bytes": grown,
                    "faults": faults,
                    "verdict": "failed" if faults else "ok",
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("others", type=Path, nargs="+")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    report = describe_run("page cache")
    report["limit_bytes"] = LIMIT_BYTES
    report["rows"] = measure(arguments.folder, arguments.others, torch.device(arguments.device))
    report["verdict"] = "ok" if all(row["verdict"] == "ok" for row in report["rows"]) else "failed"
    write_report(arguments.json, report)
    return 0 if report["verdict"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
