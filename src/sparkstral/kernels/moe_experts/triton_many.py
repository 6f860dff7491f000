"""The experts of many tokens (prefill): products on tensor cores, a tile of one expert's tokens a program.

Owns three launches over the sorted pairs of moe_route: `_gate_up_many` (gathered rows of x times gate and up, SwiGLU),
`_down_many` (times down and the pair's weight, scattered to the pair) and `_sum_many` (a token's pairs in order, and
the residual). Weights are decoded to bfloat16 on the way to shared memory, exactly: code · scale has 6 significant
bits, and the global scale multiplies the float32 sum. No atomics: each number is made in one order.

The shared expert has every token, a fifth of the work: `_decode` writes its weights out as bfloat16, once instead of
for each tile of tokens, and PyTorch's product (cuBLAS) multiplies by them, twice as fast as tiles that decode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import KernelSpec
from sparkstral.kernels.moe_route.triton_kernel import ManyRouting
from sparkstral.kernels.nvfp4_linear.codes import DECODED_EXPONENT, decode16
from sparkstral.kernels.nvfp4_linear.packing import PackedWeight
from sparkstral.kernels.nvfp4_linear.triton_kernel import ManyTile, many_product
from sparkstral.kernels.tiles import tile

SUM_COLUMNS = 1024  # outputs of a program of `_sum_many`


@dataclass(frozen=True, slots=True)
class ManyWorkspace:
    """Between the launches; for up to `num_tokens`, layers share it."""

    h: Tensor  # [T · (K + 1), I] of x's dtype, in sorted order
    y: Tensor  # [T · (K + 1), H] likewise, by pair; before that, the shared expert's gate and up [T, 2I]
    gate_up: Tensor  # [2I, H] likewise, the shared expert's, without the global scales
    down: Tensor  # [H, I] likewise

    @classmethod
    def allocate(
        cls, num_tokens: int, hidden: int, inner: int, top_k: int, device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
    ) -> ManyWorkspace:  # fmt: skip
        pairs = num_tokens * (top_k + 1)
        return cls(
            h=torch.empty(pairs, inner, dtype=dtype, device=device),
            y=torch.empty(pairs, hidden, dtype=dtype, device=device),
            gate_up=torch.empty(2 * inner, hidden, dtype=dtype, device=device),
            down=torch.empty(hidden, inner, dtype=dtype, device=device),
        )


@triton.jit
def find_tile(index, starts_ptr, tile_starts_ptr, EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """(expert, first sorted position, end of the expert's positions) of tile `index`; past the last tile, the
    expert is EXPERTS + 1."""
    expert = tl.arange(0, triton.next_power_of_2(EXPERTS + 1))
    tile_ends = tl.load(tile_starts_ptr + 1 + expert, mask=expert <= EXPERTS, other=2147483647)
    expert = tl.sum((tile_ends <= index).to(tl.int32), axis=0)
    inside = tl.minimum(expert, EXPERTS)
    first = tl.load(starts_ptr + inside) + (index - tl.load(tile_starts_ptr + inside)) * ROWS
    return expert, first, tl.load(starts_ptr + inside + 1)


@triton.jit(do_not_specialize=["half_groups"])
def _gate_up_many(
    codes_ptr, scale_ptr, factor_ptr, x_ptr, pairs_ptr, starts_ptr, tile_starts_ptr, h_ptr, half_groups,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    GROUPS: tl.constexpr = HIDDEN // 16
    wait_for_inputs(PDL)
    expert, first, end = find_tile(tl.program_id(1), starts_ptr, tile_starts_ptr, EXPERTS, ROWS)
    if expert < EXPERTS:
        position = first + tl.arange(0, ROWS)
        token = tl.load(pairs_ptr + position, mask=position < end, other=0) // SLOTS
        x_ptrs = x_ptr + token[:, None].to(tl.int64) * HIDDEN + tl.arange(0, DEPTH)[None, :]
        # Rows 2i and 2i + 1 of the tile are gate and up of output i: neighbours in a thread's registers.
        row = tl.arange(0, COLUMNS)
        row = row % 2 * INNER + tl.program_id(0) * (COLUMNS // 2) + row // 2
        group = tl.arange(0, DEPTH // 16)
        start = expert.to(tl.int64) * (2 * INNER * GROUPS)
        codes_ptrs = codes_ptr + start + (row[:, None] * GROUPS + group[None, :])
        # As in triton_few: with what is known of their alignment, no thread takes more than two groups of a row, and
        # decoded values reach shared memory 16 bytes at a time.
        scale_ptrs = scale_ptr + start + (row[:, None] * (2 * half_groups) + group[None, :])
        sums = many_product(x_ptrs, codes_ptrs, scale_ptrs, ROWS, COLUMNS, DEPTH, HIDDEN, PTX)
        gate, up = tl.split(tl.reshape(sums, (ROWS, COLUMNS // 2, 2)))
        gate = gate * (tl.load(factor_ptr + expert * 2) * 2.0**DECODED_EXPONENT)
        up = up * (tl.load(factor_ptr + expert * 2 + 1) * 2.0**DECODED_EXPONENT)
        h = gate / (1 + tl.exp(-gate)) * up
        column = tl.program_id(0) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
        to = h_ptr + position[:, None].to(tl.int64) * INNER + column[None, :]
        tl.store(to, h.to(h_ptr.dtype.element_ty), mask=(position < end)[:, None])


@triton.jit(do_not_specialize=["half_groups"])
def _down_many(
    codes_ptr, scale_ptr, factor_ptr, h_ptr, pairs_ptr, weights_ptr, starts_ptr, tile_starts_ptr, y_ptr,
    half_groups,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    GROUPS: tl.constexpr = INNER // 16
    wait_for_inputs(PDL)
    expert, first, end = find_tile(tl.program_id(1), starts_ptr, tile_starts_ptr, EXPERTS, ROWS)
    if expert < EXPERTS:
        position = first + tl.arange(0, ROWS)
        is_row = position < end
        pair = tl.load(pairs_ptr + position, mask=is_row, other=0)
        h_row = tl.where(is_row, position, first)[:, None].to(tl.int64)
        h_ptrs = h_ptr + h_row * INNER + tl.arange(0, DEPTH)[None, :]
        row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        group = tl.arange(0, DEPTH // 16)
        start = expert.to(tl.int64) * (HIDDEN * GROUPS)
        codes_ptrs = codes_ptr + start + (row[:, None] * GROUPS + group[None, :])
        scale_ptrs = scale_ptr + start + (row[:, None] * (2 * half_groups) + group[None, :])  # as in _gate_up_many
        sums = many_product(h_ptrs, codes_ptrs, scale_ptrs, ROWS, COLUMNS, DEPTH, INNER, PTX)
        weight = tl.load(weights_ptr + pair, mask=is_row, other=0.0)
        y = sums * (weight * (tl.load(factor_ptr + expert) * 2.0**DECODED_EXPONENT))[:, None]
        to = y_ptr + pair[:, None].to(tl.int64) * HIDDEN + row[None, :]
        tl.store(to, y.to(y_ptr.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def _sum_many(
    y_ptr, factor_ptr, residual_ptr, out_ptr,
    HIDDEN: tl.constexpr, EXPERTS: tl.constexpr, SLOTS: tl.constexpr, COLUMNS: tl.constexpr, RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    factor = tl.load(factor_ptr + EXPERTS) * 2.0**DECODED_EXPONENT
    wait_for_inputs(PDL)
    for slot in tl.static_range(SLOTS):
        y = tl.load(y_ptr + (token * SLOTS + slot) * HIDDEN + column).to(tl.float32)
        total += y * factor if slot == SLOTS - 1 else y
    at = token * HIDDEN + column
    if RESIDUAL:
        total += tl.load(residual_ptr + at).to(tl.float32)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["half_groups"])
def _decode(
    codes_ptr, scale_ptr, out_ptr, start, half_groups,
    K: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS rows of a matrix [.., K] whose first code is `start`, as bfloat16, 2^-DECODED_EXPONENT times."""
    let_next_start(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    codes = tl.load(codes_ptr + start + (row[:, None] * (K // 16) + group[None, :]))
    scale = tl.load(scale_ptr + start + (row[:, None] * (2 * half_groups) + group[None, :]))  # as in _gate_up_many
    values = decode16(codes, scale, ROWS, GROUPS, PTX)
    column = tl.program_id(1) * (16 * GROUPS) + tl.arange(0, 16 * GROUPS)
    wait_for_inputs(PDL)  # what is overwritten is read by the layer before
    tl.store(out_ptr + row[:, None] * K + column[None, :], values.to(out_ptr.dtype.element_ty))


@triton.jit
def _swiglu_shared(
    gate_up_ptr, factor_ptr, h_ptr,
    INNER: tl.constexpr, EXPERTS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    gate_factor = tl.load(factor_ptr + 2 * EXPERTS) * 2.0**DECODED_EXPONENT
    up_factor = tl.load(factor_ptr + 2 * EXPERTS + 1) * 2.0**DECODED_EXPONENT
    wait_for_inputs(PDL)
    gate = tl.load(gate_up_ptr + token * (2 * INNER) + column).to(tl.float32) * gate_factor
    up = tl.load(gate_up_ptr + token * (2 * INNER) + INNER + column).to(tl.float32) * up_factor
    h = gate / (1 + tl.exp(-gate)) * up
    tl.store(h_ptr + token * INNER + column, h.to(h_ptr.dtype.element_ty))


def shared_many(
    x: Tensor, gate_up: PackedWeight, down: PackedWeight, workspace: ManyWorkspace, specs: ManySpecs
) -> None:
    """The shared expert of x [T, H], whose weights are the last of gate_up and down: into its pairs' rows of
    workspace.y, without down's global scale. Before `gate_up_many`."""
    num_tokens, hidden, inner, slots = len(x), specs.hidden, specs.inner, specs.slots
    for weight, out in ((gate_up, workspace.gate_up), (down, workspace.down)):
        rows, size = out.shape
        spec = specs.decode(rows, size)
        spec.launch(
            (rows // int(spec.constants["ROWS"]), size // 16 // int(spec.constants["GROUPS"])),
            weight.codes, weight.scale, out, specs.num_experts * out.numel() // 16, size // 32, pdl=specs.pdl,
        )  # fmt: skip
    products = workspace.y.view(-1)[: num_tokens * 2 * inner].view(num_tokens, 2 * inner)
    torch.mm(x, workspace.gate_up.T, out=products)
    h = workspace.h[num_tokens * (slots - 1) : num_tokens * slots]
    spec = specs.swiglu_shared()
    spec.launch(
        (num_tokens, inner // int(spec.constants["COLUMNS"])), products, gate_up.factor, h, pdl=specs.pdl
    )  # fmt: skip
    y = workspace.y[: num_tokens * slots].view(num_tokens, slots, hidden)[:, -1]
    torch.mm(h, workspace.down.T, out=y)


def gate_up_many(
    x: Tensor, gate_up: PackedWeight, routing: ManyRouting, workspace: ManyWorkspace, specs: ManySpecs
) -> None:
    """After `route_many` of x [T, H] with tiles of the same rows: the inner values of the sorted pairs, but for the
    shared expert's; the weight as in `gate_up_few`."""
    spec = specs.gate_up()
    spec.launch(
        (2 * specs.inner // int(spec.constants["COLUMNS"]), specs.max_tiles(len(x))),
        gate_up.codes, gate_up.scale, gate_up.factor, x, routing.pairs, routing.starts, routing.tile_starts,
        workspace.h, specs.hidden // 32, pdl=specs.pdl,
    )  # fmt: skip


def down_many(
    down: PackedWeight, routing: ManyRouting, residual: Tensor | None, out: Tensor, workspace: ManyWorkspace,
    specs: ManySpecs,
) -> None:
    """After `shared_many` and `gate_up_many`: out [T, H] = residual + the weighted sums; the weight as in
    `down_few`."""  # fmt: skip
    num_tokens, hidden = out.shape
    spec = specs.down()
    spec.launch(
        (hidden // int(spec.constants["COLUMNS"]), specs.max_tiles(num_tokens)),
        down.codes, down.scale, down.factor, workspace.h, routing.pairs, routing.weights, routing.starts,
        routing.tile_starts, workspace.y, specs.inner // 32, pdl=specs.pdl,
    )  # fmt: skip
    spec = specs.sum()
    spec.launch(
        (num_tokens, hidden // int(spec.constants["COLUMNS"])), workspace.y, down.factor, residual, out, pdl=specs.pdl
    )


@dataclass(frozen=True, slots=True)
class ManySpecs:
    """The variants of one model's launches."""

    hidden: int
    inner: int
    num_experts: int
    slots: int  # K + 1
    gate_up_tile: ManyTile
    down_tile: ManyTile
    residual: bool
    ptx: bool
    pdl: bool

    def max_tiles(self, num_tokens: int) -> int:
        """The most tiles of pairs of one routed expert that `num_tokens` tokens can need."""
        pairs = num_tokens * (self.slots - 1)
        rows = self.gate_up_tile.rows
        return min(pairs, (pairs + (rows - 1) * self.num_experts) // rows)

    def gate_up(self) -> KernelSpec:
        part = self.gate_up_tile
        return KernelSpec(
            f"_gate_up_many, {part}", _gate_up_many,
            {"codes_ptr": "*i64", "scale_ptr": "*fp8e4nv", "factor_ptr": "*fp32", "x_ptr": "*bf16",
             "pairs_ptr": "*i32", "starts_ptr": "*i32", "tile_starts_ptr": "*i32", "h_ptr": "*bf16",
             "half_groups": "i32"},
            {**self.constants(part, self.hidden), "SLOTS": self.slots, "COLUMNS": tile(2 * self.inner, part.columns)},
            part.num_warps, part.num_stages, needs=("mma",),
        )  # fmt: skip

    def down(self) -> KernelSpec:
        part = self.down_tile
        return KernelSpec(
            f"_down_many, {part}", _down_many,
            {"codes_ptr": "*i64", "scale_ptr": "*fp8e4nv", "factor_ptr": "*fp32", "h_ptr": "*bf16",
             "pairs_ptr": "*i32", "weights_ptr": "*fp32", "starts_ptr": "*i32", "tile_starts_ptr": "*i32",
             "y_ptr": "*bf16", "half_groups": "i32"},
            {**self.constants(part, self.inner), "COLUMNS": tile(self.hidden, part.columns)},
            part.num_warps, part.num_stages, needs=("mma",),
        )  # fmt: skip

    def decode(self, rows: int, size: int) -> KernelSpec:
        return KernelSpec(
            f"_decode, {rows} x {size}", _decode,
            {"codes_ptr": "*i64", "scale_ptr": "*fp8e4nv", "out_ptr": "*bf16", "start": "i32:16", "half_groups": "i32"},
            {"K": size, "ROWS": tile(rows, 64), "GROUPS": tile(size // 16, 8), "PTX": self.ptx, "PDL": self.pdl},
            num_warps=4,
        )  # fmt: skip

    def swiglu_shared(self) -> KernelSpec:
        return KernelSpec(
            "_swiglu_shared", _swiglu_shared, {"gate_up_ptr": "*bf16", "factor_ptr": "*fp32", "h_ptr": "*bf16"},
            {"INNER": self.inner, "EXPERTS": self.num_experts, "COLUMNS": tile(self.inner, SUM_COLUMNS),
             "PDL": self.pdl}, num_warps=4,
        )  # fmt: skip

    def sum(self) -> KernelSpec:
        return KernelSpec(
            "_sum_many", _sum_many,
            {"y_ptr": "*bf16", "factor_ptr": "*fp32", "residual_ptr": "*bf16", "out_ptr": "*bf16"},
            {"HIDDEN": self.hidden, "EXPERTS": self.num_experts, "SLOTS": self.slots,
             "COLUMNS": tile(self.hidden, SUM_COLUMNS), "RESIDUAL": self.residual, "PDL": self.pdl}, num_warps=4,
        )  # fmt: skip

    def constants(self, part: ManyTile, size: int) -> dict[str, int | bool]:
        return {
            "HIDDEN": self.hidden, "INNER": self.inner, "EXPERTS": self.num_experts, "ROWS": part.rows,
            "DEPTH": tile(size, part.depth), "PTX": self.ptx, "PDL": self.pdl,
        }  # fmt: skip
