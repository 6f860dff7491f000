"""How fast a checkpoint comes from files onto a device, and what memory that takes meanwhile.

    python -m sparkstral.bench.load FOLDER [--device cuda] [--json] [--verify]

Owns the measurement; must not know how files are read (checkpoint/stream). Caches cannot be dropped without rights, so
the result says how much of the files was in the page cache before: a file system in memory (tmpfs) always is.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from sparkstral.checkpoint.load import allocate_buffers, load_planned
from sparkstral.checkpoint.locate import list_names
from sparkstral.checkpoint.plan import LoadPlan, plan_load
from sparkstral.checkpoint.stream import DEFAULT_READING, TORCH_DTYPES, LoadProgress, Reading, fill
from sparkstral.checkpoint.weight_file import WeightFile
from sparkstral.errors import SparkstralError
from sparkstral.units import MiB, format_bytes

_SAMPLE_SECONDS = 0.02
_COMPARE_EVERY = 23  # spans, in `compare`: prime, so that all experts and matrices have their turn


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One load, from a finished plan to weights that the model can use."""

    seconds: float
    gb_per_second: float
    rss_growth_bytes: int  # at its highest, beside the weights themselves where they are in this process' memory
    page_cache_growth_bytes: int  # of the whole machine, at its highest
    cached_before_bytes: int  # of the weight files
    cached_after_bytes: int


@dataclass(frozen=True, slots=True)
class LoadBenchmark:
    folder: str
    file_system: str
    num_files: int
    num_tensors: int  # that are loaded
    weights_bytes: int
    device: str
    num_readers: int
    chunk_bytes: int
    num_direct_files: int  # read past the page cache (O_DIRECT)
    plan_seconds: float  # reading and checking the headers
    seconds: float  # median of the runs
    gb_per_second: float
    runs: list[LoadRun]  # the first allocates the device's memory; the others after it was given back
    num_compared: int | None  # spans whose bytes were compared with the files; None: not asked for
    differing: list[str]  # names of tensors


def measure_load(
    folder: Path,
    device: torch.device,
    reading: Reading = DEFAULT_READING,
    num_runs: int = 1,
    with_comparison: bool = False,
) -> LoadBenchmark:
    """Load the checkpoint in `folder` onto `device` `num_runs` times. Raises `CheckpointError` as loading does."""
    if device.type == "cuda":
        torch.zeros(1, device=device)  # the context's memory and time are not loading's
    started = time.monotonic()
    plan = plan_load(folder)
    plan_seconds = time.monotonic() - started
    runs = [_run(plan, device, reading) for _ in range(num_runs)]
    differing = list(compare(plan, device, reading)) if with_comparison else []
    seconds = statistics.median(run.seconds for run in runs)
    return LoadBenchmark(
        folder=str(folder),
        file_system=_file_system(folder),
        num_files=len(plan.file_bytes),
        num_tensors=len(plan.used),
        weights_bytes=plan.weights_bytes,
        device="cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        num_readers=reading.num_readers,
        chunk_bytes=reading.chunk_bytes,
        num_direct_files=_count_direct(plan, reading) if device.type == "cuda" else 0,
        plan_seconds=plan_seconds,
        seconds=seconds,
        gb_per_second=plan.weights_bytes / seconds / 1e9,
        runs=runs,
        num_compared=len(plan.spans[::_COMPARE_EVERY]) if with_comparison else None,
        differing=differing,
    )


def _run(plan: LoadPlan, device: torch.device, reading: Reading) -> LoadRun:
    cached_before = count_cached_bytes(plan.file_bytes)
    with highest_growth() as growth:
        started = time.monotonic()
        weights = load_planned(plan, device, _show_progress, reading)
        seconds = time.monotonic() - started
    del weights
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return LoadRun(
        seconds=seconds,
        gb_per_second=plan.weights_bytes / seconds / 1e9,
        rss_growth_bytes=growth.rss_bytes - (plan.weights_bytes if device.type == "cpu" else 0),
        page_cache_growth_bytes=growth.page_cache_bytes,
        cached_before_bytes=cached_before,
        cached_after_bytes=count_cached_bytes(plan.file_bytes),
    )


def _show_progress(progress: LoadProgress) -> None:
    """Called as an engine's would be; shown by nobody."""


def compare(plan: LoadPlan, device: torch.device, reading: Reading) -> Iterator[str]:
    """Load once more, and compare one span in `_COMPARE_EVERY` with the file; gives the tensors that differ."""
    buffers = allocate_buffers(plan, device)
    for tensor in buffers.values():
        tensor.view(-1).view(torch.uint8).fill_(0xA5)  # which a load before has not left
    fill(buffers, plan, reading=reading)
    for span in plan.spans[::_COMPARE_EVERY]:
        with span.tensor.file.open("rb") as file:
            file.seek(span.offset)
            expected = torch.frombuffer(bytearray(file.read(span.num_bytes)), dtype=TORCH_DTYPES[span.tensor.dtype])
        found = buffers[span.buffer].view(-1)[span.first_element : span.first_element + len(expected)].cpu()
        if not torch.equal(found.view(torch.uint8), expected.to(found.dtype).view(torch.uint8)):
            yield span.tensor.name


# ------------------------------------------------------------------------------------------------------------
# Memory and files, by what Linux tells
# ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Growth:
    rss_bytes: int = 0
    page_cache_bytes: int = 0


@contextmanager
def highest_growth() -> Iterator[_Growth]:
    """How far this process' resident memory and the machine's page cache rise in the block above where they were."""
    growth, ended = _Growth(), threading.Event()
    rss, cache = _resident_bytes(), _page_cache_bytes()

    def sample() -> None:
        while True:
            growth.rss_bytes = max(growth.rss_bytes, _resident_bytes() - rss)
            growth.page_cache_bytes = max(growth.page_cache_bytes, _page_cache_bytes() - cache)
            if ended.wait(_SAMPLE_SECONDS):
                return

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield growth
    finally:
        ended.set()
        sampler.join()


def _resident_bytes() -> int:
    return _kilobytes(Path("/proc/self/status"), "VmRSS:") * 1024


def _page_cache_bytes() -> int:
    return _kilobytes(Path("/proc/meminfo"), "Cached:") * 1024


def _kilobytes(path: Path, key: str) -> int:
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(key))


def count_cached_bytes(paths: Iterable[Path]) -> int:
    """How much of the files is in the page cache, by mincore. Their owner sees it; for others Linux says: all."""
    return sum(_count_cached(path) for path in paths)


def _count_cached(path: Path) -> int:
    size = path.stat().st_size
    if not size:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)  # never touched
    finally:
        os.close(descriptor)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap of {path}")
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    try:
        if libc.mincore(address, size, pages):
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
    finally:
        libc.munmap(address, size)
    return int((torch.frombuffer(pages, dtype=torch.uint8) & 1).sum()) * mmap.PAGESIZE


def _count_direct(plan: LoadPlan, reading: Reading) -> int:
    files = [WeightFile(path, num_bytes, reading.direct) for path, num_bytes in plan.file_bytes.items()]
    for file in files:
        file.close()
    return sum(file.is_direct for file in files)


def _file_system(folder: Path) -> str:
    """The type of the file system that `folder` is on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = {str(path) for path in (folder.resolve(), *folder.resolve().parents)}
    return max((mount for mount in mounts if mount[0] in above), key=lambda mount: len(mount[0]))[1]


# ------------------------------------------------------------------------------------------------------------
# The command
# ------------------------------------------------------------------------------------------------------------


def describe(result: LoadBenchmark) -> str:
    """For people."""
    lines = [
        f"{result.folder} ({result.file_system}) to {result.device}: {result.num_tensors:,} tensors, "
        f"{format_bytes(result.weights_bytes)} in {result.seconds:.2f} s, {result.gb_per_second:.1f} GB/s; "
        f"headers {result.plan_seconds:.2f} s",
        f"{result.num_readers} readers of {format_bytes(result.chunk_bytes)}, "
        f"{result.num_direct_files} of {result.num_files} files past the page cache",
    ]
    lines += [
        f"run {number}: {run.seconds:.2f} s, {run.gb_per_second:.1f} GB/s; at most "
        f"{format_bytes(run.rss_growth_bytes)} more resident, "
        f"{format_bytes(run.page_cache_growth_bytes)} more page cache; of the files cached: "
        f"{format_bytes(run.cached_before_bytes)} before, {format_bytes(run.cached_after_bytes)} after"
        for number, run in enumerate(result.runs, 1)
    ]
    if result.num_compared is not None:
        found = f"{len(result.differing)} differ ({list_names(result.differing)})" if result.differing else "equal"
        lines.append(f"{result.num_compared:,} pieces compared with the files: {found}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 if the checkpoint cannot be loaded, or a comparison found other bytes."""
    parser = argparse.ArgumentParser(prog="python -m sparkstral.bench.load", description="Time loading a checkpoint.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--readers", type=int, default=DEFAULT_READING.num_readers)
    parser.add_argument("--chunk-mib", type=int, default=DEFAULT_READING.chunk_bytes // MiB)
    parser.add_argument("--no-direct", action="store_true", help="read through the page cache")
    parser.add_argument("--verify", action="store_true", help="load once more and compare a sample with the files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if min(options.runs, options.readers, options.chunk_mib) < 1:
        parser.error("--runs, --readers and --chunk-mib must be at least 1")
    reading = Reading(options.chunk_mib * MiB, options.readers, not options.no_direct)
    device = torch.device(options.device)
    try:
        result = measure_load(options.folder, device, reading, options.runs, options.verify)
    except SparkstralError as error:
        parser.exit(1, f"{error}\n")
    print(json.dumps(asdict(result), indent=2) if options.json else describe(result))
    return 1 if result.differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
