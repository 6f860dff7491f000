"""Triton form of the mixture-of-experts block; the contract stands in the folder's `__init__`.

Owns which form serves how many tokens, its buffers and its shipped configurations. Few tokens: routing, gate_up, down
(3 launches; 4 where items share experts). Many: routing (3), the shared expert (3 and two of cuBLAS), gate_up, down,
sum. The forms: triton_few and, from route.max_vector tokens on, triton_matrix; triton_many.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkstral.kernels.kernel_spec import KernelSpec
from sparkstral.kernels.moe_experts.triton_few import (
    FewConfig,
    FewSpecs,
    FewWorkspace,
    down_few,
    gate_up_few,
    sum_few,
)
from sparkstral.kernels.moe_experts.triton_many import (
    ManySpecs,
    ManyWorkspace,
    down_many,
    gate_up_many,
    shared_many,
)
from sparkstral.kernels.moe_experts.triton_matrix import MatrixProgram, MatrixSpecs, down_matrix, gate_up_matrix
from sparkstral.kernels.moe_experts.triton_w4a4 import InputScales, down_w4a4, gate_up_w4a4, product_specs
from sparkstral.kernels.moe_route.triton_kernel import CONFIGS as ROUTE_CONFIGS
from sparkstral.kernels.moe_route.triton_kernel import (
    FewRouting,
    ManyRouting,
    RouteConfig,
    route_few,
    route_many,
)
from sparkstral.kernels.nvfp4_linear.packing import PackedWeight
from sparkstral.kernels.nvfp4_linear.triton_kernel import FewProgram, ManyTile
from sparkstral.kernels.nvfp4_quantize.pairs import QuantizeSpecs


@dataclass(frozen=True, slots=True)
class TilePair:
    """How prefill's two products are cut, for batches of up to `max_tokens`; both have the same rows."""

    max_tokens: int
    gate_up: ManyTile
    down: ManyTile


@dataclass(frozen=True, slots=True)
class MatrixConfig:
    """Of few tokens, but more than route.max_vector."""

    gate_up: MatrixProgram
    down: MatrixProgram


@dataclass(frozen=True, slots=True)
class MoeConfig:
    route: RouteConfig
    few: FewConfig
    matrix: MatrixConfig
    max_few: int  # tokens up to which the forms for few are used, a power of two
    many: tuple[TilePair, ...]  # by max_tokens, rising; the last serves all that are more
    w4a4: tuple[TilePair, ...] = ()  # of the routed experts' products with quantised activations; (): none here


_LARGE_90 = ManyTile(128, 128, 64, num_warps=8, num_stages=3)
_SMALL_90 = ManyTile(64, 128, 64, num_warps=4, num_stages=3)
_LARGE_121 = ManyTile(64, 128, 64, num_warps=8, num_stages=3)
_SMALL_121 = ManyTile(32, 128, 64, num_warps=4, num_stages=3)
_LARGE_W4A4 = ManyTile(64, 128, 128, num_warps=8, num_stages=3)
_SMALL_W4A4 = ManyTile(32, 128, 128, num_warps=4, num_stages=3)

CONFIGS = {
    # SM 9.0. Few: 640 programs of gate_up at one token, four or more an SM, 8 reads of 16 bytes a thread under way:
    # 2.7 instructions a weight, 0.6 of the time that the weights' bytes take at 4.48 TB/s. 168 registers keep three
    # programs an SM where items have up to four pairs. Measured on an H200 on 2026-12-02: gate_up of one token 17.4 us
    # with 4 warps, 19.8 with 8; of 4 and 32 tokens 48 and 281 with 4 warps, 168 registers, 50 and 312 with 8, 128;
    # down by item of 8 and 32 tokens 52 and 160, 55 and 178; down of one token with its reads after its wait
    # 14 to 18 us for 24 MB whatever the cut: hence 4 rows, 20 KB held by each of five programs an SM. Many: tiles of
    # 128 once experts have 256 rows on average; at 4,096 tokens 64 rows take 2.28 + 1.36 ms, 128 rows 2.54 + 1.34.
    (9, 0): MoeConfig(
        route=ROUTE_CONFIGS[9, 0],
        few=FewConfig(
            gate_up_single=FewProgram(32, num_warps=4, unroll=4),
            gate_up=FewProgram(32, num_warps=4, unroll=4, max_registers=168),
            down_tokens=FewProgram(4, num_warps=4, unroll=4),
            down=FewProgram(32, num_warps=4, unroll=4, max_registers=168),
            token_major_max=4,
        ),
        matrix=MatrixConfig(MatrixProgram(4, unroll=2), MatrixProgram(4, unroll=2)),
        max_few=64,
        many=(TilePair(6144, _SMALL_90, _SMALL_90), TilePair(1 << 30, _LARGE_90, _LARGE_90)),
    ),
    # SM 12.1. At 240 GB/s the weights of one token take 295 us, the instructions 20: any cut reaches the bus that
    # keeps some 20 KB under way in each of 48 SMs. Many: 40 KiB of shared memory leave room for two programs an SM.
    (12, 1): MoeConfig(
        route=ROUTE_CONFIGS[12, 1],
        few=FewConfig(
            gate_up_single=FewProgram(32, num_warps=8, unroll=4),
            gate_up=FewProgram(32, num_warps=8, unroll=4, max_registers=128),
            down_tokens=FewProgram(4, num_warps=4, unroll=4),
            down=FewProgram(32, num_warps=8, unroll=4, max_registers=128),
            token_major_max=4,
        ),
        matrix=MatrixConfig(MatrixProgram(4, unroll=2), MatrixProgram(4, unroll=2)),
        max_few=64,
        many=(TilePair(1024, _SMALL_121, _SMALL_121), TilePair(1 << 30, _LARGE_121, _LARGE_121)),
        w4a4=(TilePair(1024, _SMALL_W4A4, _SMALL_W4A4), TilePair(1 << 30, _LARGE_W4A4, _LARGE_W4A4)),
    ),
}


@dataclass(frozen=True, slots=True)
class MoeWorkspace:
    """Buffers of all layers, which follow each other on one stream."""

    few_routing: FewRouting
    few: FewWorkspace
    many_routing: ManyRouting
    many: ManyWorkspace
    max_tokens: int  # of one pass of the form for many; longer batches take several

    @classmethod
    def allocate(
        cls, config: MoeConfig, max_tokens: int, hidden: int, inner: int, num_experts: int, top_k: int,
        device: torch.device, dtype: torch.dtype = torch.bfloat16,
    ) -> MoeWorkspace:
        """For passes of up to `max_tokens`: about 10 · (I + H) bytes a token, 61 KB in the real model."""
        return cls(
            FewRouting.allocate(config.max_few, hidden, num_experts, top_k, device),
            FewWorkspace.allocate(config.max_few, hidden, inner, top_k, device),
            ManyRouting.allocate(max_tokens, num_experts, top_k, device),
            ManyWorkspace.allocate(max_tokens, hidden, inner, top_k, device, dtype),
            max_tokens,
        )


def moe_block(
    x: Tensor, router: Tensor, gate_up: PackedWeight, down: PackedWeight, residual: Tensor | None, scaling: float,
    out: Tensor, *, workspace: MoeWorkspace, config: MoeConfig, pdl: bool, input_scales: InputScales | None = None,
) -> None:
    """x [T, H] bfloat16, normalised; router [E, H] bfloat16; the experts [E + 1, ..], the shared one last; writes
    out [T, H] = residual + block(x). out may be the residual's memory, not x's. With `input_scales`, which takes
    config.w4a4, the routed experts of many tokens read quantised activations."""  # fmt: skip
    hidden, inner, slots = x.shape[1], gate_up.codes.shape[1] // 2, workspace.few_routing.ids.shape[1]
    flags = {"residual": residual is not None, "ptx": x.is_cuda, "pdl": pdl}
    if len(x) <= config.max_few:
        few = FewSpecs(hidden, inner, slots, config.few, **flags)
        route_few(x, router, scaling, workspace.few_routing, config=config.route, pdl=pdl)
        if len(x) > config.route.max_vector:
            matrix = MatrixSpecs(
                hidden, inner, len(router), slots, config.matrix.gate_up, config.matrix.down, x.is_cuda, pdl
            )
            gate_up_matrix(gate_up, workspace.few_routing, len(x), workspace.few, matrix, down=down)
            down_matrix(down, workspace.few_routing, len(x), workspace.few, matrix)
            sum_few(workspace.few_routing, residual, out, workspace.few, few)
            return
        gate_up_few(gate_up, workspace.few_routing, len(x), workspace.few, few, down=down)
        down_few(down, workspace.few_routing, residual, out, workspace.few, few)
        return
    for start in range(0, len(x), workspace.max_tokens):
        part = slice(start, start + workspace.max_tokens)
        pairs = config.many if input_scales is None else config.w4a4
        tiles = next((pair for pair in pairs if len(x[part]) <= pair.max_tokens), pairs[-1])
        many = ManySpecs(hidden, inner, len(router), slots, tiles.gate_up, tiles.down, **flags)
        route_many(x[part], router, scaling, tiles.gate_up.rows, workspace.many_routing, pdl=pdl)
        added = None if residual is None else residual[part]
        if input_scales is not None:
            gate_up_w4a4(x[part], gate_up, input_scales, workspace.many_routing, workspace.many, many)
            shared_many(x[part], gate_up, down, workspace.many, many)
            down_w4a4(down, input_scales, workspace.many_routing, added, out[part], workspace.many, many)
            continue
        shared_many(x[part], gate_up, down, workspace.many, many)
        gate_up_many(x[part], gate_up, workspace.many_routing, workspace.many, many)
        down_many(down, workspace.many_routing, added, out[part], workspace.many, many)


def specs(config: MoeConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The variants of the real model."""
    hidden, inner, num_experts, slots = 4096, 2048, 128, 5
    few = FewSpecs(hidden, inner, slots, config.few, residual=True, ptx=True, pdl=pdl)
    found = [few.gate_up(count, num_experts, prefetch=True) for count in (1, 2)]
    found += [few.down_tokens(), few.down(), few.sum()]
    matrix = MatrixSpecs(
        hidden, inner, num_experts, slots, config.matrix.gate_up, config.matrix.down, ptx=True, pdl=pdl
    )
    found += [matrix.gate_up(prefetch=True), matrix.down()]
    for pair in config.many:
        many = ManySpecs(hidden, inner, num_experts, slots, pair.gate_up, pair.down, residual=True, ptx=True, pdl=pdl)
        found += [many.gate_up(), many.down()]
    for pair in config.w4a4:
        quantised = ManySpecs(
            hidden, inner, num_experts, slots, pair.gate_up, pair.down, residual=True, ptx=True, pdl=pdl
        )
        found += product_specs(quantised)
    if config.w4a4:
        quantize = QuantizeSpecs(num_experts, slots, pdl)
        found += [quantize.gathered(hidden), quantize.in_place(inner, item_bytes=2)]
    return [*found, many.decode(2 * inner, hidden), many.decode(hidden, inner), many.swiglu_shared(), many.sum()]
