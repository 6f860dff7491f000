"""`sparkstral tune`: which of the shipped candidate configurations is fastest on this device, each on its workloads.

    python -m sparkstral.bench.tune --json OUT.json [--output FILE] [--seconds 90] [--workers N]

One axis after the other (kernels/candidates), keeping what won; an alternative must be NOISE faster than what is
kept, so that two runs choose alike. The choices go where `load_tuned` looks; serving reads them and never tunes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sparkstral.bench.cases import Case, Setting, attention, dense, draws, experts
from sparkstral.bench.cases.setting import real_setting
from sparkstral.bench.environment import describe_run, write_report
from sparkstral.bench.kernels import require_gpu
from sparkstral.bench.run import ROTATED_BYTES, compile_in_parallel
from sparkstral.bench.timing import time_calls
from sparkstral.errors import ConfigError, SparkstralError
from sparkstral.kernels.candidates import Axis, axes_of
from sparkstral.kernels.tuned import as_json, changed, default_path, holds_for

SECONDS = 90.0
NOISE = 0.02
NUM_REPEATS = 5

# How often a decode step or a prompt has a workload: 36 layers and one head. The sum of an axis' workloads decides.
LAYERS = 36


@dataclass(frozen=True, slots=True)
class Workload:
    case: Case
    weight: int = LAYERS


def workloads(axis: Axis, s: Setting) -> list[Workload]:
    """What an axis' configurations are measured on."""
    named = _WORKLOADS[axis.operation, axis.name](s)
    return [Workload(Case(axis.operation, name, work), weight) for name, work, weight in named]


_Named = list[tuple[str, Callable[[int], Any], int]]


def _linear(*tokens: int, make: Callable[..., Any] = dense.linear_case) -> Callable[[Setting], _Named]:
    return lambda s: [
        (f"{shape}, {m} tokens", partial(make, s, shape, m), 1 if shape == "head" else LAYERS)
        for shape in dense.weight_shapes(s)
        for m in tokens
    ]


def _product(kind: Callable[..., Any], product: str, *tokens: int) -> Callable[[Setting], _Named]:
    return lambda s: [(f"{product}, {m} tokens", partial(kind, s, m, product), LAYERS) for m in tokens]


def _many(*tokens: int) -> Callable[[Setting], _Named]:
    return lambda s: [
        (f"{product}, {m} tokens", partial(experts.many_product_case, s, m, product), LAYERS)
        for m in tokens
        for product in ("gate_up", "down")
    ]


def _attend(*sizes: tuple[int, int]) -> Callable[[Setting], _Named]:
    return lambda s: [
        (f"{batch} x {context}", partial(attention.decode_case, s, [context] * batch, [1] * batch), LAYERS)
        for batch, context in sizes
    ]


_FEW = experts.few_product_case
_WORKLOADS: Mapping[tuple[str, str], Callable[[Setting], _Named]] = {
    ("moe_experts", "gate_up, 1 token"): _product(_FEW, "gate_up", 1),
    ("moe_experts", "down, 1 token"): _product(_FEW, "down", 1),
    ("moe_experts", "gate_up, several tokens"): _product(_FEW, "gate_up", 2, 4),
    ("moe_experts", "down, by item"): _product(_FEW, "down", 2, 4),
    ("moe_experts", "gate_up, matrix unit"): _product(_FEW, "gate_up", 8, 16, 32),
    ("moe_experts", "down, matrix unit"): _product(_FEW, "down", 8, 16, 32),
    ("moe_experts", "matrix unit from"): lambda s: [
        (f"block, {m} tokens", partial(experts.block_case, s, m), LAYERS) for m in (2, 4, 8, 16)
    ],
    ("moe_experts", "down by token up to"): _product(_FEW, "down", 1, 2, 4),
    ("moe_experts", "tiles of short prompts"): _many(1024),
    ("moe_experts", "tiles of long prompts"): _many(4096, 8192),
    ("bf16_linear", "rows at once"): _linear(1, 2, 4),
    ("bf16_linear", "rows at once up to"): _linear(2, 4, 8),
    ("bf16_linear", "tiles"): _linear(16, 32),
    ("fp8_linear", "rows at once"): _linear(1, 2, 4, make=dense.fp8_linear_case),
    ("fp8_linear", "rows at once up to"): _linear(2, 4, 8, make=dense.fp8_linear_case),
    ("fp8_linear", "tiles"): _linear(16, 32, make=dense.fp8_linear_case),
    ("mla_decode", "attention, KV FP8"): lambda s: [
        (f"{batch} x {context}", partial(attention.decode_case, s, [context] * batch, [1] * batch, kv="fp8"), LAYERS)
        for batch, context in ((1, 300), (1, 30_000), (8, 8_000))
    ],
    ("mla_decode", "attention"): _attend((1, 300), (1, 30_000), (8, 300), (8, 8_000), (32, 300)),
    ("mla_decode", "combination"): _attend((1, 300), (1, 30_000), (32, 300)),
    ("mla_prefill", "tiles"): lambda s: [
        (f"{n} of {k}", partial(attention.prefill_case, s, n, k), LAYERS)
        for n, k in ((1024, 1024), (8192, 8192), (2048, 30_000))
    ],
    ("sampling", "stretches"): lambda s: [
        (f"{kind}, {rows} rows", partial(draws.sampling_case, s, [kind] * rows, False), 1)
        for kind in ("greedy", "top_p")
        for rows in (1, 32)
    ],
    ("rms_norm", "warps"): lambda s: [
        (f"{m} tokens", partial(dense.norm_case, s, m, dense.parts_of(s, "o", m)), LAYERS) for m in (1, 32)
    ],
    ("latent_write", "warps"): lambda s: [
        (f"{m} tokens", partial(dense.write_case, s, m, dense.parts_of(s, "a", m)), LAYERS) for m in (1, 32)
    ],
    ("rope", "warps"): lambda s: [("8192 tokens", partial(dense.turn_case, s, 8192), LAYERS)],
    ("nvfp4_linear", "few rows"): lambda s: [
        (f"{m} rows", partial(experts.nvfp4_case, s, 4096, 4096, m), LAYERS) for m in (1, 8)
    ],
}


def all_workloads(s: Setting) -> list[Case]:
    """Of every axis under the shipped configuration and under each alternative: what there is to compile."""
    found = []
    for axis in axes_of(s.capability):
        for changes in ({}, *axis.alternatives):
            tried = s.with_config(axis.operation, changed(s.configs[axis.operation], changes))
            found += [each.case for each in workloads(axis, tried)]
    return found


Measure = Callable[[Case], float]


def measure_us(case: Case) -> float:
    return time_calls(case.prepare(ROTATED_BYTES).calls, NUM_REPEATS).us


def tune(
    s: Setting, seconds: float, measure: Measure = measure_us
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Walk the axes until `seconds` are over -> ({operation: changes}, a row an axis with its figures)."""
    deadline = time.perf_counter() + seconds
    choices: dict[str, dict[str, Any]] = {}
    rows = []
    axes = axes_of(s.capability)
    for number, axis in enumerate(axes, 1):
        row: dict[str, Any] = {"operation": axis.operation, "axis": axis.name}
        rows.append(row)
        if time.perf_counter() > deadline:
            row["verdict"] = f"kept: no time was left of {seconds:g} s"
        else:
            s, changes = _tune_axis(axis, s, row, measure, deadline)
            if changes:
                choices.setdefault(axis.operation, {}).update(changes)
        print(f"{number}/{len(axes)} {axis.operation}: {axis.name}  {row['verdict']}", flush=True)
    return choices, rows


def _tune_axis(
    axis: Axis, s: Setting, row: dict[str, Any], measure: Measure, deadline: float
) -> tuple[Setting, Mapping[str, Any]]:
    """The setting with the best of an axis' configurations, and how it differs from the one before."""
    base = s.configs[axis.operation]
    best, best_us = {}, _sum_us(workloads(axis, s), measure)
    row["shipped_us"] = best_us
    row["alternatives"] = tried = []
    for changes in axis.alternatives:
        if time.perf_counter() > deadline:
            break
        entry: dict[str, Any] = {"changes": as_json(changes)}
        tried.append(entry)
        try:
            config = changed(base, changes)
            if config == base:
                entry["same_as_shipped"] = True
                continue
            entry["us"] = _sum_us(workloads(axis, s.with_config(axis.operation, config)), measure)
        except Exception as error:  # it does not fit this device, say
            entry["failed"] = f"{type(error).__name__}: {error}"[:300]
            continue
        if entry["us"] < (1 - NOISE) * row["shipped_us"] and entry["us"] < best_us:
            best, best_us = dict(changes), entry["us"]
    row["us"] = best_us
    row["choice"] = as_json(best)
    gain = 1 - best_us / row["shipped_us"]
    row["verdict"] = f"{gain:.1%} faster with {row['choice']}" if best else "the shipped configuration is the fastest"
    return s.with_config(axis.operation, changed(base, best)), best


def _sum_us(of: list[Workload], measure: Measure) -> float:
    """Weighted, so that a workload counts as often as the model has it."""
    return sum(each.weight * measure(each.case) for each in of)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="the file for the report")
    parser.add_argument("--output", type=Path, help="the file of the choices; default: where serving looks")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that compile; 0: none")
    arguments = parser.parse_args()
    try:
        capability = require_gpu()
        report = describe_run("tune")
        begin = time.perf_counter()
        setting = real_setting()
        torch.manual_seed(0)
        if arguments.workers:
            report["not_compiled"] = compile_in_parallel(all_workloads, capability, {}, arguments.workers)
        report["compile_s"] = time.perf_counter() - begin
        choices, rows = tune(setting, arguments.seconds - report["compile_s"])
    except SparkstralError as error:
        print(f"sparkstral: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    report["rows"] = rows
    report["seconds"] = time.perf_counter() - begin
    device = torch.cuda.get_device_name()
    output = arguments.output or default_path(device)
    document = {
        **holds_for(device, capability),
        "choices": {operation: as_json(changes) for operation, changes in choices.items()},
        "figures": rows,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1))
    report["output"] = str(output)
    write_report(arguments.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
