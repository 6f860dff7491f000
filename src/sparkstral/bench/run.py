"""Carry out cases: compile what they launch on all cores, check results, take times; one that fails costs no other.

Owns the rows of a run's JSON (docs/performance/README.md), written anew after every case, so that a run that is
ended early leaves what it found. Progress goes to standard output, a line a case: "3/40 rms_norm: ...".
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sparkstral.bench.cases import Case, Setting, faults
from sparkstral.bench.cases.setting import absent_setting
from sparkstral.bench.environment import write_report
from sparkstral.bench.timing import Bandwidth, time_calls
from sparkstral.kernels import build, pack

ROTATED_BYTES = 150 << 20  # an H200's L2 holds 50 MiB, a GB10's 24

MakeCases = Callable[[Setting], list[Case]]  # of a module, or a partial of one: worker processes call it too


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is done with each case."""

    checks: bool
    times: bool
    seconds: float  # after which no case is begun


def compile_in_parallel(
    make_cases: MakeCases, capability: tuple[int, int], configs: Mapping[str, Any], workers: int
) -> list[str]:
    """Compile every variant that the cases launch, in `workers` processes that need no GPU; returns what failed."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        shares = [
            pool.submit(_compile_share, make_cases, capability, configs, index, workers) for index in range(workers)
        ]
        failed = [reason for share in shares for reason in share.result()]
    return list(dict.fromkeys(failed))


def _compile_share(
    make_cases: MakeCases, capability: tuple[int, int], configs: Mapping[str, Any], index: int, workers: int
) -> list[str]:
    build.stand_in(10 * capability[0] + capability[1])
    failed = []
    with pack.recorded(runs=False) as launches:
        for case in make_cases(absent_setting(capability, configs)):
            try:
                case.prepare(0).calls[0]()
            except Exception as error:
                failed.append(f"{case.title}: {type(error).__name__}: {error}"[:400])
    distinct = {launch.key: launch for launch in launches}
    for launch in list(distinct.values())[index::workers]:
        try:
            launch.compile()
        except Exception as error:
            failed.append(f"{launch.function}: {type(error).__name__}: {error}"[:400])
    return failed


def run_cases(
    cases: Sequence[Case], wanted: Wanted, report: dict[str, Any], output: Path | None, bandwidth: Bandwidth | None
) -> None:
    """Fill report["rows"] with a row a case; on a CPU (the interpreter) no times are taken."""
    begin = time.perf_counter()
    rows = report["rows"] = []
    for number, case in enumerate(cases, 1):
        row: dict[str, Any] = {"operation": case.operation, "name": case.name, "variant": case.variant}
        rows.append(row)
        if time.perf_counter() - begin > wanted.seconds:
            row |= {"verdict": "skipped", "faults": [f"no time was left of {wanted.seconds:g} s"]}
        else:
            row |= run_case(case, wanted, bandwidth)
        print(f"{number}/{len(cases)} {case.title}  {summary(row)}", flush=True)
        if output is not None:
            write_report(output, report)


def run_case(case: Case, wanted: Wanted, bandwidth: Bandwidth | None) -> dict[str, Any]:
    """The row of one case: its check's findings, its time, bytes and share of the bandwidth, its verdict."""
    row: dict[str, Any] = {}
    try:
        on_gpu = torch.cuda.is_available() and bandwidth is not None
        prepared = case.prepare(ROTATED_BYTES if on_gpu else 0)
        row |= {"bytes": prepared.num_bytes, "launches": prepared.num_launches}
        if wanted.checks and prepared.check is not None:
            row |= prepared.check()
        if wanted.times and bandwidth is not None:
            timing = time_calls(prepared.calls)
            row |= asdict(timing)
            row["gb_per_s"] = prepared.num_bytes / timing.us / 1e3
            row["bandwidth_share"] = prepared.num_bytes / timing.us * 1e6 / bandwidth.read_bytes_per_s
            if prepared.num_tensor_flops:
                row["tensor_flops"] = prepared.num_tensor_flops
                row["tflop_per_s"] = prepared.num_tensor_flops / timing.us / 1e6
        row["faults"] = faults(row)
    except Exception as error:
        row["faults"] = [f"{type(error).__name__}: {error}"[:800]]
        row["traceback"] = traceback.format_exc(limit=-3)[-1500:]
        torch.cuda.empty_cache()  # where memory was short, the next case may have it
    row["verdict"] = "failed" if row["faults"] else "ok"
    return row


def summary(row: Mapping[str, Any]) -> str:
    """A row's figures in a line."""
    shown = []
    if "us" in row:
        shown.append(f"{row['us']:.2f} us, {row['bandwidth_share']:.0%} of the bandwidth")
    if "tflop_per_s" in row:
        shown.append(f"{row['tflop_per_s']:.0f} TFLOP/s")
    if "error_ratio" in row:
        shown.append(f"error {row['error_ratio']:.2f} of plain")
    return ", ".join([*shown, *row["faults"]] or [row["verdict"]])
