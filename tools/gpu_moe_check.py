"""Correctness and speed of the mixture of experts on a GPU: routing, few tokens, many tokens, each by its launches.

    python tools/gpu_moe_check.py --output moe.json

Errors are against float64 and beside those of plain bfloat16 PyTorch; times are of CUDA graphs with rotated layers and
tokens. `--small --device cpu` under Triton's interpreter is a dry run of every case at shapes that take seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from sparkstral.kernels import nvfp4_linear
from sparkstral.kernels.moe_experts import triton_few, triton_kernel, triton_many
from sparkstral.kernels.moe_experts.triton_few import FewConfig, FewSpecs
from sparkstral.kernels.moe_experts.triton_many import ManySpecs
from sparkstral.kernels.moe_route.triton_kernel import FewRouting, ManyRouting, route_few, route_many
from sparkstral.kernels.nvfp4_linear.codes import decode16
from sparkstral.kernels.nvfp4_linear.packing import PackedWeight, restore
from sparkstral.kernels.nvfp4_linear.triton_kernel import FewProgram, ManyTile
from tools.device_timing import Call, Case, Prepared, compile_in_parallel, errors, run_cases

TOP_K, SLOTS = 4, 5


@dataclass(frozen=True)
class Setting:
    """The model's sizes, and where it runs; `small` is for the interpreter."""

    device: str
    small: bool
    dtype: torch.dtype
    hidden: int
    inner: int
    experts: int
    layers: int  # of different weights, so that no cache serves them

    @property
    def capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability() if self.device == "cuda" else (9, 0)


REAL = Setting("cuda", False, torch.bfloat16, hidden=4096, inner=2048, experts=128, layers=4)
SMALL = Setting("cpu", True, torch.float32, hidden=64, inner=32, experts=8, layers=1)
# Chosen by the command line before any case is made, in workers too.
SETTING = SMALL if "--small" in sys.argv else REAL
CONFIG = triton_kernel.CONFIGS[9, 0] if SETTING.small else triton_kernel.CONFIGS[SETTING.capability]
PDL = SETTING.device == "cuda"


@dataclass(frozen=True)
class Layer:
    router: Tensor
    gate_up: PackedWeight
    down: PackedWeight


def draw(rows: int, columns: int, parts: int) -> PackedWeight:
    """Any codes, scales from 2^-2 to 4; products of unit activations have a deviation near 1."""
    shape = (SETTING.experts + 1, rows, columns // 16)
    codes = torch.randint(-(2**63), 2**63 - 1, shape, device=SETTING.device)
    scale = torch.randint(0x28, 0x49, shape, dtype=torch.uint8, device=SETTING.device).view(torch.float8_e4m3fn)
    factor = (0.5 + torch.rand(SETTING.experts + 1, parts, device=SETTING.device)) / (4.5 * columns**0.5)
    return PackedWeight(codes, scale, factor)


@cache
def layer(index: int) -> Layer:
    torch.manual_seed(index)
    router = torch.randn(SETTING.experts, SETTING.hidden, device=SETTING.device) * 1.5 / SETTING.hidden**0.5
    return Layer(
        router.to(SETTING.dtype),
        draw(2 * SETTING.inner, SETTING.hidden, 2),
        draw(SETTING.hidden, SETTING.inner, 1),
    )


def tokens(count: int, seed: int) -> Tensor:
    torch.manual_seed(1000 + seed)
    return torch.randn(count, SETTING.hidden, device=SETTING.device).to(SETTING.dtype)


def dense(weight: PackedWeight, expert: int, dtype: torch.dtype) -> Tensor:
    """[N, K] of one expert."""
    parts = weight.factor.shape[1]
    rows, groups = weight.codes.shape[1:]
    packed = restore(weight.codes[expert]).view(parts, rows // parts, groups * 8)
    scale = weight.scale[expert].view(parts, rows // parts, groups)
    return nvfp4_linear.dequantize(packed, scale, 1 / weight.factor[expert], torch.float32).flatten(0, 1).to(dtype)


def by_experts(x: Tensor, ids: Tensor, weights: Tensor, of: Layer, residual: Tensor, dtype: torch.dtype) -> Tensor:
    """residual + the block, in `dtype` with PyTorch's own products, each expert in turn."""
    x, pairs = x.to(dtype), torch.zeros(*ids.shape, SETTING.hidden, dtype=dtype, device=x.device)
    for expert in ids.unique().tolist():
        token, slot = (ids == expert).nonzero(as_tuple=True)
        gate, up = F.linear(x[token], dense(of.gate_up, expert, dtype)).chunk(2, dim=-1)
        pairs[token, slot] = F.linear(F.silu(gate) * up, dense(of.down, expert, dtype))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    total = (pairs.to(wide) * weights[..., None].to(wide)).sum(1)
    return residual.to(dtype) + total.to(dtype)


def routed_bytes(distinct: float, product: str) -> float:
    """Of `distinct` experts' weights, in codes and scales."""
    rows = {"gate_up": 2 * SETTING.hidden * SETTING.inner, "down": SETTING.hidden * SETTING.inner}
    return distinct * 0.5625 * sum(rows[name] for name in rows if product in (name, "block"))


def workspace(max_tokens: int) -> triton_kernel.MoeWorkspace:
    made = triton_kernel.MoeWorkspace.allocate(
        CONFIG, max_tokens, SETTING.hidden, SETTING.inner, SETTING.experts, TOP_K, torch.device(SETTING.device)
    )
    if not SETTING.small:
        return made
    return replace(made, many=replace(made.many, h=made.many.h.float(), y=made.many.y.float()))


def num_layers(num_bytes: int) -> int:
    """Workers that only compile need one."""
    return SETTING.layers if num_bytes else 1


def rotated(count: int, num_bytes: int) -> list[tuple[Layer, Tensor]]:
    """Different layers and tokens: twice as many as there are layers."""
    layers = num_layers(num_bytes)
    return [(layer(i % layers), tokens(count, i)) for i in range(2 * layers if num_bytes else 1)]


def few_routings(count: int, num_bytes: int) -> list[tuple[Layer, FewRouting]]:
    found = []
    for of, x in rotated(count, num_bytes):
        routing = FewRouting.allocate(
            CONFIG.max_few, SETTING.hidden, SETTING.experts, TOP_K, torch.device(SETTING.device)
        )
        route_few(x, of.router, 1.0, routing, config=CONFIG.route, pdl=False)
        found.append((of, routing))
    return found


def mean_distinct(ids: list[Tensor]) -> float:
    return sum(len(some.unique()) for some in ids) / len(ids)


def prepare_block(count: int, config: triton_kernel.MoeConfig, pdl: bool, num_bytes: int) -> Prepared:
    space, out = workspace(max(count, 64)), torch.empty(count, SETTING.hidden, device=SETTING.device)
    out = out.to(SETTING.dtype)
    residual = tokens(count, 99)

    def run(of: Layer, x: Tensor) -> None:
        triton_kernel.moe_block(
            x, of.router, of.gate_up, of.down, residual, 1.0, out, workspace=space, config=config, pdl=pdl
        )

    inputs = rotated(count, num_bytes)
    ids = []
    for of, x in inputs:
        run(of, x)
        ids.append((space.few_routing if count <= config.max_few else space.many_routing).ids[:count].clone())
    return Prepared(
        [partial(run, of, x) for of, x in inputs],
        routed_bytes(mean_distinct(ids), "block") + 2 * SETTING.experts * SETTING.hidden,
        2 * SLOTS * count * 3 * SETTING.hidden * SETTING.inner,
    )


def prepare_correct(count: int, config: triton_kernel.MoeConfig, num_bytes: int) -> Prepared:
    space, of, x, residual = workspace(max(count, 64)), layer(0), tokens(count, 7), tokens(count, 8)
    out = torch.empty_like(x)

    def run(pdl: bool = False) -> None:
        triton_kernel.moe_block(
            x, of.router, of.gate_up, of.down, residual, 1.0, out, workspace=space, config=config, pdl=pdl
        )

    def check() -> dict[str, Any]:
        run()
        routing = space.few_routing if count <= config.max_few else space.many_routing
        ids, weights = routing.ids[:count].long().clone(), routing.weights[:count].clone()
        probabilities = (x.double() @ of.router.double().T).softmax(-1)
        best = probabilities.topk(TOP_K).values
        best = best / best.sum(-1, keepdim=True)
        exact = by_experts(x, ids, weights, of, residual, torch.float64)
        plain = by_experts(x, ids, weights, of, residual, SETTING.dtype)
        found = errors(out, plain, exact)
        found["weights_error"] = float((best - weights[:, :TOP_K].double()).abs().max())
        first = out.clone()
        out.fill_(float("nan"))
        run(pdl=PDL)
        found["repeats"] = bool(torch.equal(out, first))
        if 1 < count <= config.max_few:
            alone = torch.empty_like(x[:1])
            triton_kernel.moe_block(
                x[1:2], of.router, of.gate_up, of.down, residual[1:2], 1.0, alone, workspace=space, config=config,
                pdl=PDL,
            )  # fmt: skip
            found["same_bits_alone"] = bool(torch.equal(alone[0], first[1]))
        return found

    return Prepared([run], check=check)


def prepare_route(count: int, num_bytes: int) -> Prepared:
    device = torch.device(SETTING.device)
    calls: list[Call]
    if count <= CONFIG.max_few:
        few = FewRouting.allocate(CONFIG.max_few, SETTING.hidden, SETTING.experts, TOP_K, device)
        calls = [
            partial(route_few, x, of.router, 1.0, few, config=CONFIG.route, pdl=PDL)
            for of, x in rotated(count, num_bytes)
        ]
    else:
        many = ManyRouting.allocate(count, SETTING.experts, TOP_K, device)
        calls = [partial(route_many, x, of.router, 1.0, 128, many, pdl=PDL) for of, x in rotated(count, num_bytes)]
    return Prepared(calls)


def few_specs(config: FewConfig) -> FewSpecs:
    return FewSpecs(
        SETTING.hidden, SETTING.inner, SLOTS, config, residual=True, ptx=SETTING.device == "cuda", pdl=False
    )


def prepare_gate_up_few(count: int, config: FewConfig, num_bytes: int) -> Prepared:
    space, specs = workspace(64), few_specs(config)
    found = few_routings(count, num_bytes)
    calls = [
        partial(triton_few.gate_up_few, of.gate_up, routing, count, space.few, specs) for of, routing in found
    ]
    distinct = mean_distinct([routing.ids[:count] for _, routing in found])
    return Prepared(calls, routed_bytes(distinct, "gate_up"))


def prepare_down_few(count: int, config: FewConfig, num_bytes: int) -> Prepared:
    space, specs, residual = workspace(64), few_specs(config), tokens(count, 99)
    found, out = few_routings(count, num_bytes), torch.empty_like(residual)
    triton_few.gate_up_few(found[0][0].gate_up, found[0][1], count, space.few, few_specs(CONFIG.few))
    calls = [
        partial(triton_few.down_few, of.down, routing, residual, out, space.few, specs) for of, routing in found
    ]
    distinct = mean_distinct([routing.ids[:count] for _, routing in found])
    return Prepared(calls, routed_bytes(distinct, "down"))


def many_routing(of: Layer, x: Tensor, rows: int) -> ManyRouting:
    routing = ManyRouting.allocate(len(x), SETTING.experts, TOP_K, torch.device(SETTING.device))
    route_many(x, of.router, 1.0, rows, routing, pdl=False)
    return routing


def prepare_many(count: int, product: str, tile: ManyTile, num_bytes: int) -> Prepared:
    space, residual = workspace(count), tokens(count, 99)
    out = torch.empty_like(residual)
    specs = ManySpecs(
        SETTING.hidden, SETTING.inner, SETTING.experts, SLOTS, tile, tile,
        residual=True, ptx=SETTING.device == "cuda", pdl=False,
    )  # fmt: skip
    calls: list[Call] = []
    for of, x in rotated(count, num_bytes)[:3]:
        routing = many_routing(of, x, tile.rows)
        if product == "gate_up":
            calls.append(partial(triton_many.gate_up_many, x, of.gate_up, routing, space.many, specs))
        else:
            triton_many.gate_up_many(x, of.gate_up, routing, space.many, specs)
            calls.append(partial(triton_many.down_many, of.down, routing, residual, out, space.many, specs))
    share = 2 if product == "gate_up" else 1
    flops = 2 * SLOTS * count * share * SETTING.hidden * SETTING.inner
    return Prepared(calls, routed_bytes(SETTING.experts + 1, product), flops)


@triton.jit
def _decode(codes_ptr, scale_ptr, out_ptr, half_groups, K: tl.constexpr, ROWS: tl.constexpr, PTX: tl.constexpr):
    """[ROWS, 64] of a weight to bfloat16, for comparison with decoding in the product."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    group = tl.program_id(1) * 4 + tl.arange(0, 4)
    codes = tl.load(codes_ptr + row[:, None] * (K // 16) + group[None, :])
    scale = tl.load(scale_ptr + row[:, None] * (2 * half_groups) + group[None, :])
    column = tl.program_id(1) * 64 + tl.arange(0, 64)
    tl.store(out_ptr + row[:, None] * K + column[None, :], decode16(codes, scale, ROWS, 4, PTX))


def prepare_decode(num_bytes: int) -> Prepared:
    weight = layer(0).gate_up
    _, rows, groups = weight.codes.shape
    all_rows = len(weight.codes) * rows
    out = torch.empty(len(weight.codes), rows, groups * 16, dtype=torch.bfloat16, device=SETTING.device)

    def run() -> None:
        _decode[(all_rows // 64, groups // 4)](
            weight.codes, weight.scale, out, groups // 2, K=groups * 16, ROWS=64, PTX=SETTING.device == "cuda"
        )

    return Prepared([run] * 2, routed_bytes(len(weight.codes), "gate_up") + out.nbytes)


def prepare_grouped(count: int, num_bytes: int) -> Prepared:
    """PyTorch's own grouped product with dense bfloat16 experts: what gate_up would take once they are decoded."""
    of, x = layer(0), tokens(count, 0)
    routing = many_routing(of, x, 128)
    weight = torch.randn(
        SETTING.experts + 1, 2 * SETTING.inner, SETTING.hidden, dtype=SETTING.dtype, device=SETTING.device
    )
    gathered = x[routing.pairs.long() // SLOTS]
    offsets = routing.starts[1:].contiguous()
    grouped: Callable[..., Tensor] = torch._grouped_mm
    return Prepared(
        [partial(grouped, gathered, weight.transpose(-2, -1), offs=offsets)] * 2,
        num_flops=2 * SLOTS * count * 2 * SETTING.hidden * SETTING.inner,
    )


def cases() -> list[Case]:
    few, small = CONFIG.few, SETTING.small
    found = [Case("correct", f"{n} tokens, few", partial(prepare_correct, n, CONFIG)) for n in (1, 3, 17, 64)]
    always_many = replace(CONFIG, max_few=0)
    found += [
        Case("correct", f"{n} tokens, many", partial(prepare_correct, n, always_many))
        for n in ((5,) if small else (70, 600, 5000))
    ]
    by_item = replace(CONFIG, few=replace(few, token_major_max=0))
    found.append(Case("correct", "3 tokens, by item", partial(prepare_correct, 3, by_item)))
    found += [Case("block", f"{n} tokens", partial(prepare_block, n, CONFIG, PDL)) for n in _counts(1, 2, 4, 8, 16, 32)]
    found += [Case("block", f"{n} tokens", partial(prepare_block, n, CONFIG, PDL)) for n in _counts(1024, 4096, 8192)]
    found += [Case("block", f"{n} tokens, no pdl", partial(prepare_block, n, CONFIG, False)) for n in _counts(1, 8)]
    found += [Case("route", f"{n} tokens", partial(prepare_route, n)) for n in _counts(1, 8, 32, 8192)]
    for warps, unroll, registers in (
        (8, 4, None), (8, 8, None), (8, 2, None), (4, 4, None), (4, 8, None), (4, 2, None), (8, 4, 80), (16, 4, None),
        (4, 8, 96), (2, 4, None),
    ):  # fmt: skip
        program = FewProgram(32, warps, unroll, registers)
        found.append(
            Case("gate_up", f"1 token, {warps} warps, unroll {unroll}, registers {registers}",
                 partial(prepare_gate_up_few, 1, replace(few, gate_up_single=program)))
        )  # fmt: skip
    for warps, unroll, registers in ((8, 4, 128), (8, 4, None), (8, 2, 128), (16, 4, None), (4, 4, 168)):
        program = FewProgram(32, warps, unroll, registers)
        found += [
            Case("gate_up", f"{n} tokens, {warps} warps, unroll {unroll}, registers {registers}",
                 partial(prepare_gate_up_few, n, replace(few, gate_up=program)))
            for n in _counts(4, 32)
        ]  # fmt: skip
    for rows, warps, unroll in ((8, 4, 4), (16, 8, 4), (16, 4, 4), (8, 8, 4), (4, 4, 4), (8, 4, 2), (16, 4, 2)):
        program = FewProgram(rows, warps, unroll)
        found.append(
            Case("down", f"1 token, {rows} rows, {warps} warps, unroll {unroll}",
                 partial(prepare_down_few, 1, replace(few, down_tokens=program, token_major_max=1)))
        )  # fmt: skip
    for limit in (0, 64):
        found += [
            Case("down", f"{n} tokens, {'by token' if limit else 'by item'}",
                 partial(prepare_down_few, n, replace(few, token_major_max=limit)))
            for n in _counts(1, 2, 4, 8, 16, 32)
        ]  # fmt: skip
    for rows, warps, registers in ((16, 4, 128), (32, 8, None), (16, 8, 128), (32, 4, 168)):
        program = FewProgram(rows, warps, 4, registers)
        found += [
            Case("down", f"{n} tokens, by item, {rows} rows, {warps} warps, registers {registers}",
                 partial(prepare_down_few, n, replace(few, token_major_max=0, down=program)))
            for n in _counts(8, 32)
        ]  # fmt: skip
    for count, tiles in (
        (8192, ((128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (128, 256, 64, 8, 3),
                (64, 128, 64, 4, 3), (128, 128, 128, 8, 2), (64, 256, 64, 8, 3), (64, 256, 64, 4, 3))),
        (4096, ((128, 128, 64, 8, 3), (64, 128, 64, 4, 3), (64, 256, 64, 8, 3))),
        (1024, ((64, 128, 64, 4, 3), (32, 128, 64, 4, 3), (16, 128, 64, 4, 3), (32, 128, 128, 4, 3),
                (64, 64, 64, 4, 3))),
    ):  # fmt: skip
        found += [
            Case("many", f"{n} tokens, {product}, tile {shape}",
                 partial(prepare_many, n, product, ManyTile(*((16, 32, 32, 4, 2) if small else shape))))
            for n in _counts(count) for shape in tiles for product in ("gate_up", "down")
        ]  # fmt: skip
    found.append(Case("dense", "decode every expert's gate_up", prepare_decode))
    if not small:
        found += [Case("dense", f"{n} tokens, grouped product", partial(prepare_grouped, n)) for n in (4096, 8192)]
    return found


def _counts(*counts: int) -> tuple[int, ...]:
    """Under the interpreter many is few enough for seconds."""
    return tuple(sorted({min(count, 3) for count in counts})) if SETTING.small else counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="shapes for Triton's interpreter")
    parser.add_argument("--part", action="append", help="only these parts")
    parser.add_argument("--workers", type=int, default=8, help="processes that compile, 0 for none")
    parser.add_argument("--seconds", type=float, default=150.0, help="start no case after")
    arguments = parser.parse_args()
    if arguments.workers and arguments.device == "cuda":
        compile_in_parallel(cases, arguments.workers, arguments.device)
    chosen = [case for case in cases() if not arguments.part or case.part in arguments.part]
    return min(run_cases(chosen, arguments.output, arguments.device, arguments.seconds), 1)


if __name__ == "__main__":
    sys.exit(main())
