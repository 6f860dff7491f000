"""The time of every kernel on the GPU at hand, at the sizes of the real model.

    python -m sparkstral.bench.kernels --json OUT.json [--workers 12] [--seconds 170] [--check] [--only TEXT]

Needs torch, triton and numpy, and no terminal library. `--small` under TRITON_INTERPRET=1 is a dry run on a CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sparkstral.bench.cases import Case, Setting, all_cases
from sparkstral.bench.cases.setting import real_setting, small_setting
from sparkstral.bench.environment import describe_run, write_report
from sparkstral.bench.run import Wanted, compile_in_parallel, run_cases
from sparkstral.bench.timing import Bandwidth, probe_bandwidth
from sparkstral.errors import ConfigError, SparkstralError
from sparkstral.kernels.tuned import load_tuned


def chosen_cases(s: Setting, only: tuple[str, ...] = ()) -> list[Case]:
    """Those whose title holds one of the texts; all without any."""
    return [case for case in all_cases(s) if not only or any(text in case.title for text in only)]


def require_gpu() -> tuple[int, int]:
    """Its compute capability. Raises ConfigError where PyTorch sees none."""
    if not torch.cuda.is_available():
        raise ConfigError(
            "This PyTorch sees no GPU, and kernels are measured on one. Check nvidia-smi, and that PyTorch is a "
            "build for CUDA."
        )
    return torch.cuda.get_device_capability()


def measure(
    only: tuple[str, ...], wanted: Wanted, workers: int, tuned: Path | None, small: bool, output: Path
) -> dict[str, Any]:
    """The whole run; `output` grows with it."""
    report = describe_run("bench kernels")
    make_cases = partial(chosen_cases, only=only)
    bandwidth: Bandwidth | None = None
    torch.manual_seed(0)
    if small:
        setting = small_setting()
    else:
        capability = require_gpu()
        configs = load_tuned(tuned) if tuned else None
        report["tuned"] = configs is not None
        setting = real_setting(configs)
        bandwidth = probe_bandwidth()
        report["bandwidth"] = asdict(bandwidth)
        if workers:
            begin = time.perf_counter()
            report["not_compiled"] = compile_in_parallel(make_cases, capability, configs or {}, workers)
            report["compile_s"] = time.perf_counter() - begin
            print(f"compiled in {report['compile_s']:.0f} s", *report["not_compiled"], sep="\n", flush=True)
    cases = make_cases(setting)
    if not cases:
        raise ConfigError(f"No case's title holds any of: {', '.join(only)}.")
    run_cases(cases, wanted, report, output, bandwidth)
    # What PyTorch lacks on a device is no fault of a kernel.
    ours = [row for row in report["rows"] if row["operation"] != "library"]
    report["verdict"] = "failed" if any(row["verdict"] == "failed" for row in ours) else "ok"
    write_report(output, report)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that compile first; 0: none")
    parser.add_argument("--seconds", type=float, default=600, help="after which no case is begun")
    parser.add_argument("--check", action="store_true", help="compare results with the references too")
    parser.add_argument("--only", action="append", default=[], help="cases whose title holds this text")
    parser.add_argument("--tuned", type=Path, help="configurations that `sparkstral tune` chose")
    parser.add_argument("--small", action="store_true", help="on a CPU, sizes for the interpreter")
    arguments = parser.parse_args()
    wanted = Wanted(checks=arguments.check, times=not arguments.small, seconds=arguments.seconds)
    try:
        report = measure(
            tuple(arguments.only), wanted, arguments.workers, arguments.tuned, arguments.small, arguments.json
        )
    except SparkstralError as error:
        print(f"sparkstral: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0 if report["verdict"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
