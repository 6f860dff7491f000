"""The experts of few tokens (decode): matrix times a few vectors, bound by reading the weights once.

Owns three launches over the work items of moe_route: `_gate_up_few` (gate, up and SwiGLU of an item's pairs, kept as
scaled float16), then either `_down_few` and `_sum_few` (down of an item's pairs, then the weighted sum of a token's
pairs) or `_down_tokens` (both in one launch, reading an expert again for each of its tokens, from L2). They give the
same bits: a pair's sums are made in one order whoever shares its item, and a token's in the order of its experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import KernelSpec
from sparkstral.kernels.moe_route.triton_kernel import ITEM_FIELDS, FewRouting, max_items
from sparkstral.kernels.nvfp4_linear.codes import power_of_two
from sparkstral.kernels.nvfp4_linear.packing import PackedWeight
from sparkstral.kernels.nvfp4_linear.triton_kernel import (
    FewProgram,
    few_constants,
    few_products,
    held_products,
    read_weights,
)
from sparkstral.kernels.prefetch import prefetch
from sparkstral.kernels.tiles import tile

SUM_COLUMNS = 1024  # outputs of a program of `_sum_few`


@dataclass(frozen=True, slots=True)
class FewConfig:
    """How programs are cut. `gate_up` has 32 rows always: gate and up of the 16 outputs that share a scale."""

    gate_up_single: FewProgram  # of one token, whose items have one pair each
    gate_up: FewProgram
    down_tokens: FewProgram
    down: FewProgram
    token_major_max: int  # tokens up to which `_down_tokens` is used


@dataclass(frozen=True, slots=True)
class FewWorkspace:
    """Between the launches; for up to `num_tokens`, layers share it."""

    h: Tensor  # [T · (K + 1), 4, I/16, 4] float16, scaled, in the layout of FewRouting.x
    h_scale: Tensor  # [T · (K + 1), I/16] float32
    partial: Tensor  # [T · (K + 1), H] float32

    @classmethod
    def allocate(cls, num_tokens: int, hidden: int, inner: int, top_k: int, device: torch.device) -> FewWorkspace:
        pairs = num_tokens * (top_k + 1)
        return cls(
            h=torch.empty(pairs, 4, inner // 16, 4, dtype=torch.float16, device=device),
            h_scale=torch.empty(pairs, inner // 16, dtype=torch.float32, device=device),
            partial=torch.empty(pairs, hidden, dtype=torch.float32, device=device),
        )


@triton.jit
def _item_pairs(item_ptr, TOKENS: tl.constexpr):
    """The pairs of an item with TOKENS of them; of one with three, the last twice."""
    p0 = tl.load(item_ptr + 2)
    p1 = p0
    p2 = p0
    p3 = p0
    if TOKENS > 1:
        p1 = tl.load(item_ptr + 3)
    if TOKENS > 2:
        p2 = tl.load(item_ptr + 4)
        p3 = tl.load(item_ptr + tl.where(tl.load(item_ptr + 1) == 4, 5, 4))
    return p0, p1, p2, p3


@triton.jit
def _swiglu(sums, gate_factor, up_factor, pair, group, h_ptr, h_scale_ptr, INNER: tl.constexpr):
    """Rows 2i and 2i + 1 are gate and up of output i of `group`: 16 outputs, scaled to float16 by one power of two."""
    gate, up = tl.split(tl.reshape(tl.sum(sums, axis=1), (16, 2)))
    gate = gate * gate_factor
    h = gate / (1 + tl.exp(-gate)) * (up * up_factor)
    scale, inverse = power_of_two(tl.max(tl.abs(h), axis=0))
    groups: tl.constexpr = INNER // 16
    k = tl.arange(0, 16)
    tl.store(h_ptr + pair * INNER + (k // 4 * groups + group) * 4 + k % 4, (h * inverse).to(tl.float16))
    tl.store(h_scale_ptr + pair * groups + group, scale)


@triton.jit
def _gate_up_item(
    w_ptrs, s_ptrs, factor_ptr, x_ptr, x_scale_ptr, item_ptr, h_ptr, h_scale_ptr, out_group,
    TOKENS: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr,
    UNROLL: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    p0, p1, p2, p3 = _item_pairs(item_ptr, TOKENS)
    sum0, sum1, sum2, sum3 = few_products(
        w_ptrs, s_ptrs, x_ptr, x_scale_ptr, p0 // SLOTS, p1 // SLOTS, p2 // SLOTS, p3 // SLOTS,
        TOKENS, 32, HIDDEN // 16, CHUNK, UNROLL, PTX,
    )  # fmt: skip
    gate = tl.load(factor_ptr)
    up = tl.load(factor_ptr + 1)
    _swiglu(sum0, gate, up, p0, out_group, h_ptr, h_scale_ptr, INNER)
    if TOKENS > 1:
        _swiglu(sum1, gate, up, p1, out_group, h_ptr, h_scale_ptr, INNER)
    if TOKENS > 2:
        _swiglu(sum2, gate, up, p2, out_group, h_ptr, h_scale_ptr, INNER)
        _swiglu(sum3, gate, up, p3, out_group, h_ptr, h_scale_ptr, INNER)


@triton.jit
def prefetch_shared(
    codes_ptr, scale_ptr, down_codes_ptr, down_scale_ptr, out_group,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Bring the program's rows of the shared expert, which every token needs, to L2, and its share of that expert's
    `down`: their bytes do not wait for the routing."""
    GROUPS: tl.constexpr = HIDDEN // 16
    gate = (EXPERTS * 2 * INNER + out_group * 16) * GROUPS
    prefetch(codes_ptr + gate, 16 * GROUPS * 8, GROUPS * 8, THREADS)
    prefetch(codes_ptr + gate + INNER * GROUPS, 16 * GROUPS * 8, GROUPS * 8, THREADS)
    prefetch(scale_ptr + gate, 16 * GROUPS, 4 * GROUPS, THREADS)
    prefetch(scale_ptr + gate + INNER * GROUPS, 16 * GROUPS, 4 * GROUPS, THREADS)
    # INNER / 16 programs share HIDDEN · INNER / 16 groups.
    down = EXPERTS * HIDDEN * (INNER // 16) + out_group * HIDDEN
    prefetch(down_codes_ptr + down, HIDDEN * 8, HIDDEN // 2, THREADS)
    prefetch(down_scale_ptr + down, HIDDEN, HIDDEN // 4, THREADS)


@triton.jit(do_not_specialize=["half_groups"])
def _gate_up_few(
    codes_ptr, scale_ptr, factor_ptr, x_ptr, x_scale_ptr, items_ptr, h_ptr, h_scale_ptr, down_codes_ptr,
    down_scale_ptr, half_groups,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, SLOTS: tl.constexpr, ITEM_FIELDS: tl.constexpr,
    CHUNK: tl.constexpr, UNROLL: tl.constexpr, SINGLE: tl.constexpr, THREADS: tl.constexpr, PTX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = HIDDEN // 16
    out_group = tl.program_id(0)
    item_ptr = items_ptr + tl.program_id(1) * ITEM_FIELDS
    row = tl.arange(0, 32)
    row = row % 2 * INNER + out_group * 16 + row // 2
    group = tl.arange(0, CHUNK)
    w = row[:, None] * GROUPS + group[None, :]
    # The scales' addresses must not look more aligned than two bytes, or each thread takes 16 groups of a row and the
    # reads of the codes lie 128 bytes apart: so their stride is an argument of which nothing is known but 2.
    s = row[:, None] * (2 * half_groups) + group[None, :]
    if PDL and THREADS > 0:  # noqa: SIM102 (constants, apart from what is none)
        if tl.program_id(1) == 0:
            prefetch_shared(
                codes_ptr, scale_ptr, down_codes_ptr, down_scale_ptr, out_group, HIDDEN, INNER, EXPERTS, THREADS
            )
    wait_for_inputs(PDL)
    # Not before the wait: so the kernel after this one starts when the routing has ended and may read it at once.
    let_next_start(PDL)
    expert = tl.load(item_ptr).to(tl.int64)
    count = tl.load(item_ptr + 1)
    w = codes_ptr + expert * (2 * INNER * GROUPS) + w
    s = scale_ptr + expert * (2 * INNER * GROUPS) + s
    factor = factor_ptr + expert * 2
    if count == 1:
        _gate_up_item(
            w, s, factor, x_ptr, x_scale_ptr, item_ptr, h_ptr, h_scale_ptr, out_group,
            1, HIDDEN, INNER, SLOTS, CHUNK, UNROLL, PTX,
        )  # fmt: skip
    elif not SINGLE:
        if count == 2:
            _gate_up_item(
                w, s, factor, x_ptr, x_scale_ptr, item_ptr, h_ptr, h_scale_ptr, out_group,
                2, HIDDEN, INNER, SLOTS, CHUNK, 1 if UNROLL == 1 else UNROLL // 2, PTX,
            )  # fmt: skip
        elif count > 2:
            _gate_up_item(
                w, s, factor, x_ptr, x_scale_ptr, item_ptr, h_ptr, h_scale_ptr, out_group,
                4, HIDDEN, INNER, SLOTS, CHUNK, 1, PTX,
            )  # fmt: skip


@triton.jit(do_not_specialize=["half_groups"])
def _down_tokens(
    codes_ptr, scale_ptr, factor_ptr, h_ptr, h_scale_ptr, ids_ptr, weights_ptr, residual_ptr, out_ptr, half_groups,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    UNROLL: tl.constexpr, RESIDUAL: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program holds its rows of all of a token's experts in registers: UNROLL is that of other kernels."""
    let_next_start(PDL)
    GROUPS: tl.constexpr = INNER // 16
    token = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    group = tl.arange(0, CHUNK)
    w = row[:, None] * GROUPS + group[None, :]
    s = row[:, None] * (2 * half_groups) + group[None, :]  # as in _gate_up_few
    # Before the wait: _gate_up_few lets this kernel start when all its programs have waited for the routing. The ids
    # are read past L1, which may hold those of the layer before.
    held = ()
    factors = ()
    for slot in tl.static_range(SLOTS):
        expert = tl.load(ids_ptr + token * SLOTS + slot, cache_modifier=".cg").to(tl.int64)
        start = expert * (HIDDEN * GROUPS)
        weights = read_weights(codes_ptr + start + w, scale_ptr + start + s, GROUPS, CHUNK)
        held += (weights,)  # type: ignore[assignment]
        factors += (tl.load(factor_ptr + expert),)  # type: ignore[assignment]
    total = tl.zeros((ROWS,), tl.float32)
    wait_for_inputs(PDL)
    for slot in tl.static_range(SLOTS):
        pair = token * SLOTS + slot
        sums = held_products(held[slot][0], held[slot][1], h_ptr, h_scale_ptr, pair, ROWS, GROUPS, CHUNK, PTX)
        total = tl.fma(tl.sum(sums, axis=1) * factors[slot], tl.load(weights_ptr + pair), total)
    at = token * HIDDEN + row
    if RESIDUAL:
        total += tl.load(residual_ptr + at).to(tl.float32)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty))


@triton.jit
def _down_item(
    w_ptrs, s_ptrs, factor, h_ptr, h_scale_ptr, item_ptr, out_ptrs,
    TOKENS: tl.constexpr, HIDDEN: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    UNROLL: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    p0, p1, p2, p3 = _item_pairs(item_ptr, TOKENS)
    sum0, sum1, sum2, sum3 = few_products(
        w_ptrs, s_ptrs, h_ptr, h_scale_ptr, p0, p1, p2, p3, TOKENS, ROWS, GROUPS, CHUNK, UNROLL, PTX
    )
    tl.store(out_ptrs + p0 * HIDDEN, tl.sum(sum0, axis=1) * factor)
    if TOKENS > 1:
        tl.store(out_ptrs + p1 * HIDDEN, tl.sum(sum1, axis=1) * factor)
    if TOKENS > 2:
        tl.store(out_ptrs + p2 * HIDDEN, tl.sum(sum2, axis=1) * factor)
        tl.store(out_ptrs + p3 * HIDDEN, tl.sum(sum3, axis=1) * factor)


@triton.jit(do_not_specialize=["half_groups"])
def _down_few(
    codes_ptr, scale_ptr, factor_ptr, h_ptr, h_scale_ptr, items_ptr, partial_ptr, half_groups,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, ITEM_FIELDS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    UNROLL: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    GROUPS: tl.constexpr = INNER // 16
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    item_ptr = items_ptr + tl.program_id(1) * ITEM_FIELDS
    group = tl.arange(0, CHUNK)
    w = row[:, None] * GROUPS + group[None, :]
    s = row[:, None] * (2 * half_groups) + group[None, :]  # as in _gate_up_few
    wait_for_inputs(PDL)
    expert = tl.load(item_ptr).to(tl.int64)
    count = tl.load(item_ptr + 1)
    w = codes_ptr + expert * (HIDDEN * GROUPS) + w
    s = scale_ptr + expert * (HIDDEN * GROUPS) + s
    factor = tl.load(factor_ptr + expert)
    if count == 1:
        _down_item(
            w, s, factor, h_ptr, h_scale_ptr, item_ptr, partial_ptr + row,
            1, HIDDEN, GROUPS, ROWS, CHUNK, UNROLL, PTX,
        )  # fmt: skip
    elif count == 2:
        _down_item(
            w, s, factor, h_ptr, h_scale_ptr, item_ptr, partial_ptr + row,
            2, HIDDEN, GROUPS, ROWS, CHUNK, 1 if UNROLL == 1 else UNROLL // 2, PTX,
        )  # fmt: skip
    elif count > 2:
        _down_item(
            w, s, factor, h_ptr, h_scale_ptr, item_ptr, partial_ptr + row,
            4, HIDDEN, GROUPS, ROWS, CHUNK, 1, PTX,
        )  # fmt: skip


@triton.jit
def _sum_few(
    partial_ptr, weights_ptr, residual_ptr, out_ptr,
    HIDDEN: tl.constexpr, SLOTS: tl.constexpr, COLUMNS: tl.constexpr, RESIDUAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    token = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    wait_for_inputs(PDL)
    for slot in tl.static_range(SLOTS):
        pair = token * SLOTS + slot
        total = tl.fma(tl.load(partial_ptr + pair * HIDDEN + column), tl.load(weights_ptr + pair), total)
    at = token * HIDDEN + column
    if RESIDUAL:
        total += tl.load(residual_ptr + at).to(tl.float32)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty))


def gate_up_few(
    gate_up: PackedWeight, routing: FewRouting, num_tokens: int, workspace: FewWorkspace, specs: FewSpecs,
    *, down: PackedWeight | None = None,
) -> None:
    """After `route_few` of `num_tokens` tokens: the inner values of their pairs. gate_up [E + 1, 2I, H] has w1's rows,
    then w3's, and two parts; the shared expert is the last. With `down`, the next launch's weight, the shared expert
    comes to L2 while the routing still runs."""  # fmt: skip
    specs.gate_up(num_tokens, len(gate_up.codes) - 1, prefetch=down is not None).launch(
        (specs.inner // 16, max_items(num_tokens, len(gate_up.codes) - 1, specs.slots - 1)),
        gate_up.codes, gate_up.scale, gate_up.factor, routing.x.view(torch.int64), routing.x_scale, routing.items,
        workspace.h, workspace.h_scale, (down or gate_up).codes, (down or gate_up).scale, specs.hidden // 32,
        pdl=specs.pdl,
    )  # fmt: skip


def down_few(
    down: PackedWeight, routing: FewRouting, residual: Tensor | None, out: Tensor, workspace: FewWorkspace,
    specs: FewSpecs,
) -> None:
    """After `gate_up_few`: out [T, H] = residual + the weighted sums. down [E + 1, H, I] has one part."""  # fmt: skip
    num_tokens, hidden = out.shape
    h = workspace.h.view(torch.int64)
    half_groups = specs.inner // 32
    if num_tokens <= specs.config.token_major_max:
        spec = specs.down_tokens()
        spec.launch(
            (num_tokens, hidden // int(spec.constants["ROWS"])),
            down.codes, down.scale, down.factor, h, workspace.h_scale, routing.ids, routing.weights, residual, out,
            half_groups, pdl=specs.pdl,
        )  # fmt: skip
        return
    spec = specs.down()
    spec.launch(
        (hidden // int(spec.constants["ROWS"]), max_items(num_tokens, len(down.codes) - 1, specs.slots - 1)),
        down.codes, down.scale, down.factor, h, workspace.h_scale, routing.items, workspace.partial, half_groups,
        pdl=specs.pdl,
    )  # fmt: skip
    sum_few(routing, residual, out, workspace, specs)


def sum_few(
    routing: FewRouting, residual: Tensor | None, out: Tensor, workspace: FewWorkspace, specs: FewSpecs
) -> None:
    """out [T, H] = residual + the weighted sums of the pairs' outputs in the workspace."""
    num_tokens, hidden = out.shape
    spec = specs.sum()
    spec.launch(
        (num_tokens, hidden // int(spec.constants["COLUMNS"])),
        workspace.partial, routing.weights, residual, out, pdl=specs.pdl,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FewSpecs:
    """The variants of one model's launches."""

    hidden: int
    inner: int
    slots: int  # K + 1
    config: FewConfig
    residual: bool
    ptx: bool
    pdl: bool

    def gate_up(self, num_tokens: int, num_experts: int, *, prefetch: bool) -> KernelSpec:
        single = num_tokens == 1
        program = self.config.gate_up_single if single else self.config.gate_up
        return self._weight_spec(
            _gate_up_few, program, self.hidden,
            {"x_ptr": "*i64", "x_scale_ptr": "*fp32", "items_ptr": "*i32", "h_ptr": "*fp16", "h_scale_ptr": "*fp32",
             "down_codes_ptr": "*i64", "down_scale_ptr": "*fp8e4nv"},
            {"EXPERTS": num_experts, "SLOTS": self.slots, "ITEM_FIELDS": ITEM_FIELDS, "SINGLE": single,
             "THREADS": 32 * program.num_warps if prefetch else 0},
        )  # fmt: skip

    def down_tokens(self) -> KernelSpec:
        return self._weight_spec(
            _down_tokens, self.config.down_tokens, self.inner,
            {"h_ptr": "*i64", "h_scale_ptr": "*fp32", "ids_ptr": "*i32", "weights_ptr": "*fp32",
             "residual_ptr": "*bf16", "out_ptr": "*bf16"},
            {"SLOTS": self.slots, "ROWS": tile(self.hidden, self.config.down_tokens.rows), "RESIDUAL": self.residual},
        )  # fmt: skip

    def down(self) -> KernelSpec:
        return self._weight_spec(
            _down_few, self.config.down, self.inner,
            {"h_ptr": "*i64", "h_scale_ptr": "*fp32", "items_ptr": "*i32", "partial_ptr": "*fp32"},
            {"ITEM_FIELDS": ITEM_FIELDS, "ROWS": tile(self.hidden, self.config.down.rows)},
        )  # fmt: skip

    def sum(self) -> KernelSpec:
        return KernelSpec(
            "_sum_few", _sum_few,
            {"partial_ptr": "*fp32", "weights_ptr": "*fp32", "residual_ptr": "*bf16", "out_ptr": "*bf16"},
            {"HIDDEN": self.hidden, "SLOTS": self.slots, "COLUMNS": tile(self.hidden, SUM_COLUMNS),
             "RESIDUAL": self.residual, "PDL": self.pdl}, num_warps=4,
        )  # fmt: skip

    def _weight_spec(
        self, function: Any, program: FewProgram, columns: int, pointers: dict[str, str], constants: dict[str, int]
    ) -> KernelSpec:
        """A kernel that reads weight rows of `columns` columns."""
        return KernelSpec(
            f"{function.__name__}, {program}", function,
            {"codes_ptr": "*i64", "scale_ptr": "*fp8e4nv", "factor_ptr": "*fp32", "half_groups": "i32", **pointers},
            {"HIDDEN": self.hidden, "INNER": self.inner, "PTX": self.ptx, "PDL": self.pdl,
             **few_constants(columns, program), **constants},
            program.num_warps, max_registers=program.max_registers, needs=("fma.rn.f16x2",),
        )  # fmt: skip
