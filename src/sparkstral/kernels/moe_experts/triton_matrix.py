"""The experts of several tokens (decode of a batch): few vectors, but too many for the ordinary lanes' arithmetic.

Owns two launches over the work items of moe_route, which have up to eight pairs here: `_gate_up_matrix` (gate, up and
SwiGLU of an item's pairs, kept as bfloat16) and `_down_matrix`; `triton_few`'s sum follows. A warp decodes 16 weight
rows in registers and multiplies eight rows of x by them (nvfp4_linear.matrix); those that an item lacks are its first
once more. A pair's sums are made in one order whoever shares its item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import KernelSpec
from sparkstral.kernels.moe_experts.triton_few import FewWorkspace, prefetch_shared
from sparkstral.kernels.moe_route.triton_kernel import ITEM_FIELDS, MATRIX_TOKENS, FewRouting, max_items
from sparkstral.kernels.nvfp4_linear.codes import DECODED_EXPONENT
from sparkstral.kernels.nvfp4_linear.matrix import add_products, to_bfloat16
from sparkstral.kernels.nvfp4_linear.packing import PackedWeight
from sparkstral.kernels.tiles import tile

CHUNK = 8  # groups of 16 columns that a warp takes at once, see nvfp4_linear.matrix


@dataclass(frozen=True, slots=True)
class MatrixProgram:
    """`num_warps` warps of 16 weight rows each; `unroll` times 128 columns of them are read while as many are used."""

    num_warps: int
    unroll: int
    max_registers: int | None = None  # of a thread; None: as many as the compiler likes


@triton.jit
def _read_all(a, b, c, d, is_there, RAGGED: tl.constexpr, CACHE: tl.constexpr):
    """Tiles of 8 groups; where RAGGED, 0 for groups past the row's end. Otherwise is_there says whether any is."""
    other: tl.constexpr = 0.0 if RAGGED else None
    return (
        tl.load(a, mask=is_there, other=other, cache_modifier=CACHE),
        tl.load(b, mask=is_there, other=other, cache_modifier=CACHE),
        tl.load(c, mask=is_there, other=other),
        tl.load(d, mask=is_there, other=other),
    )


@triton.jit
def _read(codes, scales, at, GROUPS: tl.constexpr, CHUNK: tl.constexpr, UNROLL: tl.constexpr):
    """Weights of UNROLL chunks from group `at` on, (codes of lower rows, of upper rows, scales likewise) each."""
    RAGGED: tl.constexpr = GROUPS % (CHUNK * UNROLL) != 0
    found = ()
    for part in tl.static_range(UNROLL):
        to = at + part * CHUNK
        is_there = (to + tl.arange(0, CHUNK) < GROUPS)[None, :] if RAGGED else at < GROUPS
        # Past L1, which is x's: weights are read once.
        found += (  # type: ignore[assignment]
            _read_all(codes[0] + to, codes[1] + to, scales[0] + to, scales[1] + to, is_there, RAGGED, ".cg"),
        )
    return found


@triton.jit
def _item_products(
    codes_ptr, scale_ptr, lower_row, upper_row, x_ptr, x_row, half_groups,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, CHUNK: tl.constexpr, UNROLL: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Products of weight rows lower_row and upper_row [ROWS, 1] with eight rows of x, each [ROWS, 8]; x_row [ROWS, 1]
    names x's row r % 8 in row r."""
    STEP: tl.constexpr = CHUNK * UNROLL
    group = tl.arange(0, CHUNK)[None, :]
    codes = (codes_ptr + lower_row * GROUPS + group, codes_ptr + upper_row * GROUPS + group)
    # The scales' stride as in triton_few._gate_up_few.
    scales = (scale_ptr + lower_row * (2 * half_groups) + group, scale_ptr + upper_row * (2 * half_groups) + group)
    x_ptrs = x_ptr + x_row * (4 * GROUPS) + group
    lower = tl.zeros((ROWS, 8), tl.float32)
    upper = tl.zeros((ROWS, 8), tl.float32)
    weights = _read(codes, scales, 0, GROUPS, CHUNK, UNROLL)
    for start in range(0, GROUPS, STEP):
        # What the next turn needs is under way during this one.
        following = _read(codes, scales, start + STEP, GROUPS, CHUNK, UNROLL)
        for part in tl.static_range(UNROLL):
            at = x_ptrs + (start + part * CHUNK)
            if GROUPS % STEP == 0:
                x = (tl.load(at), tl.load(at + GROUPS), tl.load(at + 2 * GROUPS), tl.load(at + 3 * GROUPS))
            else:
                is_there = start + part * CHUNK + group < GROUPS
                x = _read_all(at, at + GROUPS, at + 2 * GROUPS, at + 3 * GROUPS, is_there, True, "")
            lower, upper = add_products(
                weights[part][0], weights[part][1], weights[part][2], weights[part][3], x, lower, upper, ROWS, PTX
            )
        weights = following
    return lower, upper


@triton.jit(do_not_specialize=["half_groups"])
def _gate_up_matrix(
    codes_ptr, scale_ptr, factor_ptr, x_ptr, items_ptr, h_ptr, down_codes_ptr, down_scale_ptr, half_groups,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, SLOTS: tl.constexpr, ITEM_FIELDS: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, UNROLL: tl.constexpr, THREADS: tl.constexpr, PTX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = HIDDEN // 16
    item_ptr = items_ptr + tl.program_id(1) * ITEM_FIELDS
    row = tl.arange(0, ROWS)
    output = (tl.program_id(0) * ROWS + row)[:, None]
    if PDL and THREADS > 0:  # noqa: SIM102 (constants, apart from what is none)
        if tl.program_id(1) == 0:
            for part in tl.static_range(ROWS // 16):  # its outputs, 16 at a time
                prefetch_shared(
                    codes_ptr, scale_ptr, down_codes_ptr, down_scale_ptr, tl.program_id(0) * (ROWS // 16) + part,
                    HIDDEN, INNER, EXPERTS, THREADS,
                )  # fmt: skip
    wait_for_inputs(PDL)
    let_next_start(PDL)
    expert = tl.load(item_ptr).to(tl.int64)
    count = tl.load(item_ptr + 1)
    if count > 0:
        x_pair = tl.load(item_ptr + 2 + tl.where(row % 8 < count, row % 8, 0))[:, None]
        start = expert * (2 * INNER * GROUPS)
        gate, up = _item_products(
            codes_ptr + start, scale_ptr + start, output, INNER + output, x_ptr, x_pair // SLOTS,
            half_groups, ROWS, GROUPS, CHUNK, UNROLL, PTX,
        )  # fmt: skip
        gate = gate * (tl.load(factor_ptr + expert * 2) * 2.0**DECODED_EXPONENT)
        up = up * (tl.load(factor_ptr + expert * 2 + 1) * 2.0**DECODED_EXPONENT)
        h = gate / (1 + tl.exp(-gate)) * up
        member = tl.arange(0, 8)
        pair = tl.load(item_ptr + 2 + member, mask=member < count, other=0)[None, :]
        to = h_ptr + pair * INNER + (output % 16 // 4 * (INNER // 16) + output // 16) * 4 + output % 4
        tl.store(to, to_bfloat16(h, PTX), mask=(member < count)[None, :])


@triton.jit(do_not_specialize=["half_groups"])
def _down_matrix(
    codes_ptr, scale_ptr, factor_ptr, h_ptr, items_ptr, partial_ptr, half_groups,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, ITEM_FIELDS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    UNROLL: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    GROUPS: tl.constexpr = INNER // 16
    item_ptr = items_ptr + tl.program_id(1) * ITEM_FIELDS
    row = tl.arange(0, ROWS)
    lower_row = (tl.program_id(0) * (2 * ROWS) + row)[:, None]
    wait_for_inputs(PDL)
    expert = tl.load(item_ptr).to(tl.int64)
    count = tl.load(item_ptr + 1)
    if count > 0:
        x_pair = tl.load(item_ptr + 2 + tl.where(row % 8 < count, row % 8, 0))[:, None]
        start = expert * (HIDDEN * GROUPS)
        lower, upper = _item_products(
            codes_ptr + start, scale_ptr + start, lower_row, lower_row + ROWS, h_ptr, x_pair,
            half_groups, ROWS, GROUPS, CHUNK, UNROLL, PTX,
        )  # fmt: skip
        factor = tl.load(factor_ptr + expert) * 2.0**DECODED_EXPONENT
        member = tl.arange(0, 8)
        pair = tl.load(item_ptr + 2 + member, mask=member < count, other=0)[None, :]
        to = partial_ptr + pair * HIDDEN + lower_row
        tl.store(to, lower * factor, mask=(member < count)[None, :])
        tl.store(to + ROWS, upper * factor, mask=(member < count)[None, :])


def gate_up_matrix(
    gate_up: PackedWeight, routing: FewRouting, num_tokens: int, workspace: FewWorkspace, specs: MatrixSpecs,
    *, down: PackedWeight | None = None,
) -> None:
    """After `route_few` of more than `max_vector` tokens: the inner values of their pairs; weights and `down` as in
    `triton_few.gate_up_few`."""  # fmt: skip
    spec = specs.gate_up(prefetch=down is not None)
    num_items = max_items(num_tokens, specs.num_experts, specs.slots - 1, MATRIX_TOKENS)
    spec.launch(
        (specs.inner // int(spec.constants["ROWS"]), num_items),
        gate_up.codes, gate_up.scale, gate_up.factor, routing.x.view(torch.int64), routing.items,
        workspace.h.view(torch.bfloat16), (down or gate_up).codes, (down or gate_up).scale, specs.hidden // 32,
        pdl=specs.pdl,
    )  # fmt: skip


def down_matrix(
    down: PackedWeight, routing: FewRouting, num_tokens: int, workspace: FewWorkspace, specs: MatrixSpecs
) -> None:
    """After `gate_up_matrix`: each pair's output, for `triton_few.sum_few`."""
    spec = specs.down()
    num_items = max_items(num_tokens, specs.num_experts, specs.slots - 1, MATRIX_TOKENS)
    spec.launch(
        (specs.hidden // (2 * int(spec.constants["ROWS"])), num_items),
        down.codes, down.scale, down.factor, workspace.h.view(torch.int64), routing.items, workspace.partial,
        specs.inner // 32, pdl=specs.pdl,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MatrixSpecs:
    """The variants of one model's launches."""

    hidden: int
    inner: int
    num_experts: int
    slots: int  # K + 1
    gate_up_program: MatrixProgram
    down_program: MatrixProgram
    ptx: bool
    pdl: bool

    def gate_up(self, *, prefetch: bool) -> KernelSpec:
        program = self.gate_up_program
        rows = tile(self.inner, 8 * program.num_warps)
        return self._spec(
            _gate_up_matrix, program, self.hidden, rows,
            {"x_ptr": "*i64", "h_ptr": "*bf16", "down_codes_ptr": "*i64", "down_scale_ptr": "*fp8e4nv"},
            {"EXPERTS": self.num_experts, "SLOTS": self.slots, "THREADS": 4 * rows if prefetch else 0},
        )  # fmt: skip

    def down(self) -> KernelSpec:
        program = self.down_program
        return self._spec(
            _down_matrix, program, self.inner, tile(self.hidden // 2, 8 * program.num_warps),
            {"h_ptr": "*i64", "partial_ptr": "*fp32"}, {},
        )  # fmt: skip

    def _spec(
        self, function: Any, program: MatrixProgram, columns: int, rows: int, pointers: dict[str, str],
        constants: dict[str, int],
    ) -> KernelSpec:  # fmt: skip
        return KernelSpec(
            f"{function.__name__}, {program}", function,
            {"codes_ptr": "*i64", "scale_ptr": "*fp8e4nv", "factor_ptr": "*fp32", "items_ptr": "*i32",
             "half_groups": "i32", **pointers},
            {"HIDDEN": self.hidden, "INNER": self.inner, "ITEM_FIELDS": ITEM_FIELDS, "ROWS": rows, "CHUNK": CHUNK,
             "UNROLL": tile(-(-columns // (16 * CHUNK)), program.unroll), "PTX": self.ptx, "PDL": self.pdl,
             **constants},
            rows // 8, max_registers=program.max_registers, needs=("mma.sync.aligned.m16n8k16",),
        )  # fmt: skip
