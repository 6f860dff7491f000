"""`sparkstral verify`: every kernel against its reference on this device, the memory's bandwidth, the softmax scale.

    python -m sparkstral.bench.verify --json OUT.json [--model FOLDER] [--workers N] [--seconds S]

One JSON that others can judge: every figure, and a verdict of each row and of the whole. "ok" needs every check made
and passed; "failed" means that one did not pass; "incomplete" that some could not be made (no GPU, no time).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sparkstral.bench.cases import kernel_cases
from sparkstral.bench.cases.setting import OPERATIONS, real_setting
from sparkstral.bench.environment import describe_run, write_report
from sparkstral.bench.run import Wanted, compile_in_parallel, run_cases
from sparkstral.bench.timing import probe_bandwidth
from sparkstral.errors import ConfigError, SparkstralError
from sparkstral.kernels.tuned import load_tuned

KERNELS = {*OPERATIONS, "moe_route"}
NO_GPU = (
    "This PyTorch sees no GPU, so no kernel was checked. Run the same command on the DGX Spark; if it has a GPU, check "
    "nvidia-smi, and that PyTorch is a build for CUDA."
)


def verify(model: Path | None, workers: int, seconds: float, output: Path) -> dict[str, Any]:
    """The whole run; `output` grows with it. Raises ConfigError for a GPU that the kernels do not serve."""
    report = describe_run("verify")
    begin = time.perf_counter()
    if torch.cuda.is_available():
        _check_kernels(report, workers, seconds, output)
    else:
        report["rows"] = []
        report["reasons"] = [NO_GPU]
    if model is not None:
        report["loss"] = _check_loss(model)
    report["seconds"] = time.perf_counter() - begin
    report |= conclude(report)
    write_report(output, report)
    return report


def _check_kernels(report: dict[str, Any], workers: int, seconds: float, output: Path) -> None:
    torch.manual_seed(0)
    # What serving would use is what is verified.
    configs = load_tuned()
    report["tuned"] = configs is not None
    setting = real_setting(configs)
    bandwidth = probe_bandwidth()
    report["bandwidth"] = asdict(bandwidth)
    if workers:
        compile_in_parallel(kernel_cases, torch.cuda.get_device_capability(), configs or {}, workers)
    run_cases(kernel_cases(setting), Wanted(checks=True, times=True, seconds=seconds), report, output, bandwidth)


def _check_loss(folder: Path) -> dict[str, Any]:
    # Imported here: the tokenizer's package is not needed to check kernels.
    from sparkstral.bench.loss import compare_scales
    from sparkstral.bench.loss_text import texts_for
    from sparkstral.checkpoint.plan import plan_load

    last = ""

    def report(what: str) -> None:
        nonlocal last
        if what != last:
            print(f"0/0 {what}", flush=True)
            last = what

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.cuda.empty_cache()
    try:
        texts = texts_for(folder, plan_load(folder).config.vocab_size)
        found = compare_scales(folder, texts, device, report)
    except SparkstralError as error:
        found = {"checkpoint": folder.name, "verdict": "failed", "sentence": str(error)}
    except Exception as error:  # what was found of the kernels must not be lost
        found = {"checkpoint": folder.name, "verdict": "failed", "sentence": f"{type(error).__name__}: {error}"[:800]}
    return found


def conclude(report: Mapping[str, Any]) -> dict[str, Any]:
    """The whole's verdict and, in words, why it is not "ok"."""
    rows = report["rows"]
    reasons = list(report.get("reasons", []))
    failed = [row for row in rows if row["verdict"] == "failed"]
    skipped = [row for row in rows if row["verdict"] == "skipped"]
    reasons += [f"{row['operation']}, {row['name']}: {'; '.join(row['faults'])}" for row in failed]
    if skipped:
        reasons.append(f"{len(skipped)} of {len(rows)} checks were skipped: {skipped[0]['faults'][0]}")
    unchecked = KERNELS - {row["operation"] for row in rows}
    if rows and unchecked:
        reasons.append(f"no check of {', '.join(sorted(unchecked))}")
    loss = report.get("loss")
    if loss is not None and loss["verdict"] != "ok":
        reasons.append(loss["sentence"])
    if failed or (loss is not None and loss["verdict"] == "failed"):
        verdict = "failed"
    else:
        verdict = "incomplete" if reasons else "ok"
    return {"verdict": verdict, "reasons": reasons}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    parser.add_argument("--model", type=Path, help="a checkpoint whose softmax scale is checked")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that compile first; 0: none")
    parser.add_argument("--seconds", type=float, default=900, help="after which no check is begun")
    arguments = parser.parse_args()
    try:
        report = verify(arguments.model, arguments.workers, arguments.seconds, arguments.json)
    except SparkstralError as error:
        print(f"sparkstral: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0 if report["verdict"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
