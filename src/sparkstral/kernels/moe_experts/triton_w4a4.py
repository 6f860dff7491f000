"""The routed experts of many tokens with both sides in NVFP4 (W4A4), for GPUs that multiply it: SM 12.x.

Owns the products of moe_experts' form for many with quantised activations (kernels/nvfp4_quantize) in place of
bfloat16: x is quantised for each sorted pair with its expert's global scale, multiplied by gate and up, and the inner
values are quantised where they lie for down. Routing, the shared expert and the last sum are triton_many's. Codes of
weights become nibbles on the way, thirteen instructions for eight; `tl.dot_scaled` does the rest, scales included, in
float32. Without such a GPU (PTX = False) the same values are multiplied in float32: for tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor, float8_e4m3fn, uint8, uint16

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import KernelSpec
from sparkstral.kernels.moe_experts.triton_many import ManySpecs, ManyWorkspace, find_tile
from sparkstral.kernels.moe_route.triton_kernel import ManyRouting
from sparkstral.kernels.nvfp4_linear.packing import PackedWeight
from sparkstral.kernels.nvfp4_quantize.pairs import QuantizeSpecs
from sparkstral.kernels.tiles import tile

INSTRUCTION = "kind::mxf4nvf4.block_scale.scale_vec::4X"


@dataclass(frozen=True, slots=True)
class InputScales:
    """Of a layer's routed experts: the global scales of what their products read (divisors)."""

    x: Tensor  # [E] float32: of gate and up together, the smaller of theirs, so that neither saturates
    h: Tensor  # [E] float32: of down


@triton.jit
def _nibbles(halves):
    """uint16 halves of reordered words -> their codes as nibbles, in word order."""
    even = ((halves << 3) & 0x7000) | ((halves << 2) & 0x0700) | ((halves << 1) & 0x0070)
    signs = ((halves >> 1) & 0x0800) | ((halves >> 7) & 0x0080) | ((halves >> 10) & 0x0008)
    return even | signs | (halves & 0x8007)


@triton.jit
def _plain(nibbles):
    """The value of codes, float32."""
    magnitude = nibbles & 7
    step = tl.where(magnitude < 4, magnitude * 0.5, tl.where(magnitude < 6, magnitude - 2.0, magnitude * 2.0 - 8.0))
    return tl.where(nibbles >= 8, -step, step)


@triton.jit
def _plain_operand(packed, scale, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """packed [ROWS, DEPTH/2], scale [ROWS, DEPTH/16] -> [ROWS, DEPTH] float32."""
    values = tl.reshape(tl.join(_plain(packed & 15), _plain(packed >> 4)), (ROWS, DEPTH // 16, 16))
    return tl.reshape(values * scale.to(tl.float32)[:, :, None], (ROWS, DEPTH))


@triton.jit
def _scaled_product(
    a_ptrs, a_scale_ptrs, halves_ptrs, scale_ptrs,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SIZE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Codes [ROWS, SIZE] with their scales times the transpose of COLUMNS weight rows with theirs, float32."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, SIZE, DEPTH):
        a = tl.load(a_ptrs + start // 2)
        a_scale = tl.load(a_scale_ptrs + start // 16)
        nibbles = _nibbles(tl.load(halves_ptrs + start // 4))
        scale = tl.load(scale_ptrs + start // 16)
        w = tl.reshape(tl.join((nibbles & 0xFF).to(tl.uint8), (nibbles >> 8).to(tl.uint8)), (COLUMNS, DEPTH // 2))
        if PTX:
            total = tl.dot_scaled(a, a_scale, "e2m1", tl.trans(w), scale, "e2m1", total)
        else:
            right = tl.trans(_plain_operand(w, scale, COLUMNS, DEPTH))
            total = tl.dot(_plain_operand(a, a_scale, ROWS, DEPTH), right, total)
    return total


@triton.jit
def _gate_up_w4a4(
    halves_ptr, scale_ptr, factor_ptr, x_ptr, x_scale_ptr, global_scale_ptr, starts_ptr, tile_starts_ptr, h_ptr,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    wait_for_inputs(PDL)
    expert, first, end = find_tile(tl.program_id(1), starts_ptr, tile_starts_ptr, EXPERTS, ROWS)
    if expert < EXPERTS:
        position = first + tl.arange(0, ROWS)
        is_row = position < end
        from_row = tl.where(is_row, position, first)[:, None].to(tl.int64)
        # Rows 2i and 2i + 1 of the tile are gate and up of output i: neighbours in a thread's registers.
        row = tl.arange(0, COLUMNS)
        row = row % 2 * INNER + tl.program_id(0) * (COLUMNS // 2) + row // 2
        start = expert.to(tl.int64) * (2 * INNER * HIDDEN)
        sums = _scaled_product(
            x_ptr + from_row * (HIDDEN // 2) + tl.arange(0, DEPTH // 2)[None, :],
            x_scale_ptr + from_row * (HIDDEN // 16) + tl.arange(0, DEPTH // 16)[None, :],
            halves_ptr + start // 4 + (row[:, None] * (HIDDEN // 4) + tl.arange(0, DEPTH // 4)[None, :]),
            scale_ptr + start // 16 + (row[:, None] * (HIDDEN // 16) + tl.arange(0, DEPTH // 16)[None, :]),
            ROWS, COLUMNS, DEPTH, HIDDEN, PTX,
        )  # fmt: skip
        gate, up = tl.split(tl.reshape(sums, (ROWS, COLUMNS // 2, 2)))
        global_scale = tl.load(global_scale_ptr + expert)
        gate = gate * (tl.load(factor_ptr + expert * 2) / global_scale)
        up = up * (tl.load(factor_ptr + expert * 2 + 1) / global_scale)
        h = gate / (1 + tl.exp(-gate)) * up
        column = tl.program_id(0) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
        to = h_ptr + position[:, None].to(tl.int64) * INNER + column[None, :]
        tl.store(to, h.to(h_ptr.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def _down_w4a4(
    halves_ptr, scale_ptr, factor_ptr, h_ptr, h_scale_ptr, global_scale_ptr, pairs_ptr, weights_ptr, starts_ptr,
    tile_starts_ptr, y_ptr,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    wait_for_inputs(PDL)
    expert, first, end = find_tile(tl.program_id(1), starts_ptr, tile_starts_ptr, EXPERTS, ROWS)
    if expert < EXPERTS:
        position = first + tl.arange(0, ROWS)
        is_row = position < end
        from_row = tl.where(is_row, position, first)[:, None].to(tl.int64) * STRIDE
        pair = tl.load(pairs_ptr + position, mask=is_row, other=0)
        row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        start = expert.to(tl.int64) * (HIDDEN * INNER)
        sums = _scaled_product(
            h_ptr + from_row + tl.arange(0, DEPTH // 2)[None, :],
            h_scale_ptr + from_row + (INNER // 2 + tl.arange(0, DEPTH // 16)[None, :]),
            halves_ptr + start // 4 + (row[:, None] * (INNER // 4) + tl.arange(0, DEPTH // 4)[None, :]),
            scale_ptr + start // 16 + (row[:, None] * (INNER // 16) + tl.arange(0, DEPTH // 16)[None, :]),
            ROWS, COLUMNS, DEPTH, INNER, PTX,
        )  # fmt: skip
        weight = tl.load(weights_ptr + pair, mask=is_row, other=0.0)
        y = sums * (weight * (tl.load(factor_ptr + expert) / tl.load(global_scale_ptr + expert)))[:, None]
        to = y_ptr + pair[:, None].to(tl.int64) * HIDDEN + row[None, :]
        tl.store(to, y.to(y_ptr.dtype.element_ty), mask=is_row[:, None])


def gate_up_w4a4(
    x: Tensor, gate_up: PackedWeight, scales: InputScales, routing: ManyRouting, workspace: ManyWorkspace,
    specs: ManySpecs,
) -> None:
    """`gate_up_many` with quantised x, which lies in workspace.y meanwhile: before `shared_many`."""  # fmt: skip
    num_tokens, hidden = x.shape
    num_pairs = num_tokens * (specs.slots - 1)
    memory = workspace.y.view(-1).view(uint8)
    codes = memory[: num_pairs * hidden // 2]
    x_scales = memory[len(memory) // 2 :][: num_pairs * hidden // 16]
    quantize = QuantizeSpecs(specs.num_experts, specs.slots, specs.pdl).gathered(hidden)
    quantize.launch(
        (num_pairs,), x, routing.pairs, routing.starts, scales.x, codes, x_scales, pdl=specs.pdl
    )
    spec = gate_up_spec(specs)
    spec.launch(
        (2 * specs.inner // int(spec.constants["COLUMNS"]), specs.max_tiles(num_tokens)),
        _halves(gate_up), gate_up.scale, gate_up.factor, codes, x_scales.view(float8_e4m3fn), scales.x, routing.starts,
        routing.tile_starts, workspace.h, pdl=specs.pdl,
    )  # fmt: skip


def down_w4a4(
    down: PackedWeight, scales: InputScales, routing: ManyRouting, residual: Tensor | None, out: Tensor,
    workspace: ManyWorkspace, specs: ManySpecs,
) -> None:
    """`down_many` with inner values that are quantised where they lie."""  # fmt: skip
    num_tokens, hidden = out.shape
    in_bytes = workspace.h.view(uint8)
    quantize = QuantizeSpecs(specs.num_experts, specs.slots, specs.pdl)
    quantize.in_place(specs.inner, workspace.h.itemsize).launch(
        (num_tokens * (specs.slots - 1),), workspace.h, routing.starts, scales.h, in_bytes, pdl=specs.pdl
    )
    spec = down_spec(specs, workspace.h.itemsize)
    spec.launch(
        (hidden // int(spec.constants["COLUMNS"]), specs.max_tiles(num_tokens)),
        _halves(down), down.scale, down.factor, in_bytes, in_bytes.view(float8_e4m3fn), scales.h, routing.pairs,
        routing.weights, routing.starts, routing.tile_starts, workspace.y, pdl=specs.pdl,
    )  # fmt: skip
    spec = specs.sum()
    spec.launch(
        (num_tokens, hidden // int(spec.constants["COLUMNS"])), workspace.y, down.factor, residual, out, pdl=specs.pdl
    )


def _halves(weight: PackedWeight) -> Tensor:
    return weight.codes.view(uint16)


def gate_up_spec(specs: ManySpecs) -> KernelSpec:
    part = specs.gate_up_tile
    return KernelSpec(
        f"_gate_up_w4a4, {part}", _gate_up_w4a4,
        {"halves_ptr": "*u16", "scale_ptr": "*fp8e4nv", "factor_ptr": "*fp32", "x_ptr": "*u8",
         "x_scale_ptr": "*fp8e4nv", "global_scale_ptr": "*fp32", "starts_ptr": "*i32", "tile_starts_ptr": "*i32",
         "h_ptr": "*bf16"},
        {**specs.constants(part, specs.hidden), "COLUMNS": tile(2 * specs.inner, part.columns)},
        part.num_warps, part.num_stages, needs=(INSTRUCTION,),
    )  # fmt: skip


def down_spec(specs: ManySpecs, item_bytes: int = 2) -> KernelSpec:
    part = specs.down_tile
    return KernelSpec(
        f"_down_w4a4, {part}", _down_w4a4,
        {"halves_ptr": "*u16", "scale_ptr": "*fp8e4nv", "factor_ptr": "*fp32", "h_ptr": "*u8",
         "h_scale_ptr": "*fp8e4nv", "global_scale_ptr": "*fp32", "pairs_ptr": "*i32", "weights_ptr": "*fp32",
         "starts_ptr": "*i32", "tile_starts_ptr": "*i32", "y_ptr": "*bf16"},
        {**specs.constants(part, specs.inner), "STRIDE": specs.inner * item_bytes,
         "COLUMNS": tile(specs.hidden, part.columns)},
        part.num_warps, part.num_stages, needs=(INSTRUCTION,),
    )  # fmt: skip


def product_specs(specs: ManySpecs) -> list[KernelSpec]:
    return [gate_up_spec(specs), down_spec(specs)]
