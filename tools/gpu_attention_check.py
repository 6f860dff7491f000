"""Correctness and speed of the attention side of the model on a GPU: products, norms, attention, sampling.

    PYTHONPATH=src:. python -m tools.gpu_attention_check --workers 12 --output attention.json

Errors are against float64 and beside those of plain bfloat16 PyTorch; times are of CUDA graphs with rotated inputs.
`--small` under Triton's interpreter is a dry run of every part, on a CPU, at shapes that take seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tools.attention_cases.decode import decode_cases
from tools.attention_cases.draws import sampling_cases
from tools.attention_cases.layer import layer_cases
from tools.attention_cases.prefill import prefill_cases
from tools.attention_cases.products import linear_cases, small_cases
from tools.attention_cases.setting import REAL, SMALL, Setting
from tools.device_timing import Case, compile_in_parallel, run_cases

PARTS: dict[str, Callable[[Setting], list[Case]]] = {
    "layer": layer_cases,
    "decode": decode_cases,
    "norms": small_cases,
    "linear": linear_cases,
    "prefill": prefill_cases,
    "sampling": sampling_cases,
}


def cases_of(setting: Setting, parts: list[str]) -> list[Case]:
    return [case for part in parts for case in PARTS[part](setting)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=200, help="after which cases are skipped")
    parser.add_argument("--workers", type=int, default=0, help="processes that compile first")
    parser.add_argument("--small", action="store_true", help="on the CPU, shapes for the interpreter")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    setting = SMALL if arguments.small else REAL
    make_cases = partial(cases_of, setting, arguments.parts)
    if arguments.workers:
        compile_in_parallel(make_cases, arguments.workers, setting.device)
    failed = run_cases(make_cases(), arguments.output, setting.device, arguments.seconds)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
