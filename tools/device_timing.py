"""Timing and checking of kernels on a GPU: cases that fail alone, a JSON file that grows with them.

A case prepares calls over rotated inputs (so that the L2 cache does not serve them), may check its result, and is
timed as a CUDA graph of all its calls. Before that, worker processes run each case once, which fills Triton's cache
on all cores. On a CPU (dry run) a case is checked and its calls are made, and nothing is timed.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a case does: `calls` of equal work, the bytes and operations of one, and what `check` found."""

    calls: Sequence[Call]
    num_bytes: float = 0
    num_flops: float = 0
    check: Callable[[], dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    part: str
    name: str
    prepare: Callable[[int], Prepared]  # of a number of bytes that the rotated inputs should exceed
    extra: dict[str, Any] = field(default_factory=dict)


def errors(ours: Tensor, plain: Tensor, exact: Tensor) -> dict[str, float]:
    """Root-mean-square and largest errors against float64, of ours and of plain bfloat16 PyTorch, and the ratio."""
    scale = exact.double().square().mean().sqrt()
    ours_error, plain_error = (ours.double() - exact).flatten(), (plain.double() - exact).flatten()
    ours_rms, plain_rms = ours_error.square().mean().sqrt() / scale, plain_error.square().mean().sqrt() / scale
    return {
        "error_rms": float(ours_rms),
        "plain_error_rms": float(plain_rms),
        "error_ratio": float(ours_rms / plain_rms),
        "error_max": float(ours_error.abs().max() / scale),
        "plain_error_max": float(plain_error.abs().max() / scale),
    }


def graph_us(calls: Sequence[Call], repeats: int = 7) -> float:
    """Median microseconds of one of `calls`, captured as one CUDA graph and replayed."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls[:3]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / len(calls))
    return float(statistics.median(times))


def read_bandwidth() -> float:
    """Bytes a second of a plain sum over 4 GiB."""
    x = torch.ones(1 << 30, dtype=torch.float32, device="cuda")
    return x.numel() * 4 / (graph_us([lambda: torch.sum(x)] * 3) * 1e-6)


def versions() -> dict[str, str]:
    import triton

    found = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["cuda"] = str(torch.version.cuda)
    for name, command in (
        ("commit", ["git", "rev-parse", "HEAD"]),
        ("driver", ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
    ):
        try:
            found[name] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            found[name] = "unknown"
    return found


def _run_once(case: Case, device: str) -> str | None:
    try:
        case.prepare(0).calls[0]()
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception:
        return f"{case.part} {case.name}\n{traceback.format_exc(limit=3)}"
    return None


def _compile_some(make_cases: Callable[[], list[Case]], worker: int, num_workers: int, device: str) -> None:
    for case in make_cases()[worker::num_workers]:
        failure = _run_once(case, device)
        if failure:
            print(failure[-600:], file=sys.stderr, flush=True)


def compile_in_parallel(make_cases: Callable[[], list[Case]], num_workers: int, device: str) -> None:
    """Run every case once in worker processes; `make_cases` is a function of a module."""
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_compile_some, args=(make_cases, i, num_workers, device)) for i in range(num_workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def run_cases(cases: Sequence[Case], output: Path, device: str, seconds: float) -> int:
    """Check and time every case until `seconds` are over; returns how many failed."""
    begin = time.perf_counter()
    bandwidth = read_bandwidth() if device == "cuda" else None
    report: dict[str, Any] = {"schema_version": 1, "command": sys.argv, **versions(), "read_bytes_per_s": bandwidth}
    report["cases"] = entries = []
    num_failed = 0
    for case in cases:
        entry: dict[str, Any] = {"part": case.part, "name": case.name, **case.extra}
        entries.append(entry)
        if time.perf_counter() - begin > seconds:
            entry["skipped"] = f"no time left of {seconds} s"
            continue
        try:
            _run(case, entry, device, bandwidth)
        except Exception as error:
            num_failed += 1
            entry["failed"] = f"{type(error).__name__}: {error}"[:800]
            entry["traceback"] = traceback.format_exc(limit=-3)[-1500:]
        print(_line(entry), flush=True)
        output.write_text(json.dumps(report, indent=1))
    report["seconds"] = time.perf_counter() - begin
    output.write_text(json.dumps(report, indent=1))
    return num_failed


def _run(case: Case, entry: dict[str, Any], device: str, bandwidth: float | None) -> None:
    prepared = case.prepare(150 << 20 if device == "cuda" else 0)
    if prepared.check:
        entry.update(prepared.check())
    if device != "cuda":
        prepared.calls[0]()
        return
    us = graph_us(prepared.calls)
    entry["us"] = us
    if prepared.num_bytes and bandwidth:
        entry["bytes"] = prepared.num_bytes
        entry["gb_per_s"] = prepared.num_bytes / us / 1e3
        entry["bandwidth_share"] = prepared.num_bytes / us * 1e6 / bandwidth
    if prepared.num_flops:
        entry["tflop_per_s"] = prepared.num_flops / us / 1e6


def _line(entry: dict[str, Any]) -> str:
    shown = {
        key: f"{value:.4g}" if isinstance(value, float) else value
        for key, value in entry.items()
        if key not in ("part", "name", "traceback", "bytes")
    }
    return f"{entry['part']:10} {entry['name']:50} " + " ".join(f"{key}={value}" for key, value in shown.items())
