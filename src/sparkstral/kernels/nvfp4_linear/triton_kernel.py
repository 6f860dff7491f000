"""Triton form of kernels/nvfp4_linear; the contract stands in the folder's `__init__`.

Few rows of x: `_scale` rewrites x as scaled float16, `_linear_few` multiplies up to four rows by a program's weight
rows in registers. Many rows: `_linear_many` decodes a tile of the weight to bfloat16 on the way to the tensor cores.
`few_products` and `many_product` are those two ways for any kernel that reads packed weights; `reorder_` packs codes
in place, at the speed of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec
from sparkstral.kernels.nvfp4_linear.codes import (
    DECODED_EXPONENT,
    decode16,
    dot1,
    dot2,
    dot4,
    dot_bfloat16,
    scale_row,
)
from sparkstral.kernels.nvfp4_linear.packing import MAGNITUDE_BITS, SIGN_BITS, PackedWeight
from sparkstral.kernels.tiles import tile

CHUNK = 32  # groups of 16 columns that a program takes at once; fixed, as it decides the order of sums
GROUP_ROWS = 4  # rows of x that share a program, few rows
REORDER_WORDS = 1024  # of a program of `_reorder`
_MAGNITUDES = tl.constexpr(MAGNITUDE_BITS)
_SIGNS = tl.constexpr(SIGN_BITS)


@dataclass(frozen=True, slots=True)
class FewProgram:
    """`rows` of the weight by `num_warps` warps; `unroll` chunks of CHUNK groups lie in a loop's body, so that their
    reads are under way together (of items with two pairs half as many, with more one)."""

    rows: int
    num_warps: int
    unroll: int
    max_registers: int | None = None  # of a thread; None: as many as the compiler likes


@dataclass(frozen=True, slots=True)
class ManyTile:
    """A program's share: `rows` pairs times `columns` weight rows, `depth` columns of the weight at a time."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class LinearConfig:
    few: FewProgram
    many: ManyTile
    max_few: int  # rows of x up to which the form for few is faster


CONFIGS = {
    # 132 SMs, wgmma, 227 KiB of shared memory: two programs of 72 KiB an SM, so that one decodes while one multiplies.
    (9, 0): LinearConfig(FewProgram(16, 8, 4), ManyTile(128, 128, 64, num_warps=8, num_stages=3), max_few=32),
    # 48 SMs, mma.sync, 99 KiB: two programs of 40 KiB.
    (12, 1): LinearConfig(FewProgram(16, 8, 4), ManyTile(64, 128, 64, num_warps=8, num_stages=3), max_few=32),
}


@triton.jit
def _row(x_ptr, scale_ptr, at, GROUPS: tl.constexpr, CHUNK: tl.constexpr):
    """CHUNK groups of a scaled float16 row: four int64 (16 values) and their scale, each [1, CHUNK]."""
    group = at + tl.arange(0, CHUNK)
    x0 = tl.load(x_ptr + group)[None, :]
    x1 = tl.load(x_ptr + GROUPS + group)[None, :]
    x2 = tl.load(x_ptr + 2 * GROUPS + group)[None, :]
    x3 = tl.load(x_ptr + 3 * GROUPS + group)[None, :]
    return (x0, x1, x2, x3), tl.load(scale_ptr + group)[None, :]


@triton.jit
def few_products(
    w_ptrs, s_ptrs, x_ptr, xs_ptr, r0, r1, r2, r3,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, CHUNK: tl.constexpr, UNROLL: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """Products of ROWS weight rows with the rows r0, .. of x, of which TOKENS (1, 2 or 4) are wanted: each
    [ROWS, CHUNK], to be summed over its second dimension."""
    sum0 = tl.zeros((ROWS, CHUNK), tl.float32)
    sum1 = sum0
    sum2 = sum0
    sum3 = sum0
    for start in range(0, GROUPS, CHUNK * UNROLL):
        for part in tl.static_range(UNROLL):
            at = start + part * CHUNK
            w = tl.load(w_ptrs + at)
            scale = tl.load(s_ptrs + at).to(tl.float32)
            a, a_scale = _row(x_ptr + r0 * (4 * GROUPS), xs_ptr + r0 * GROUPS, at, GROUPS, CHUNK)
            if TOKENS == 1:
                sum0 = tl.fma(dot1(w, a, PTX), scale * a_scale, sum0)
            else:
                b, b_scale = _row(x_ptr + r1 * (4 * GROUPS), xs_ptr + r1 * GROUPS, at, GROUPS, CHUNK)
                if TOKENS == 2:
                    y0, y1 = dot2(w, a, b, PTX)
                else:
                    c, c_scale = _row(x_ptr + r2 * (4 * GROUPS), xs_ptr + r2 * GROUPS, at, GROUPS, CHUNK)
                    d, d_scale = _row(x_ptr + r3 * (4 * GROUPS), xs_ptr + r3 * GROUPS, at, GROUPS, CHUNK)
                    y0, y1, y2, y3 = dot4(w, a, b, c, d, PTX)
                    sum2 = tl.fma(y2, scale * c_scale, sum2)
                    sum3 = tl.fma(y3, scale * d_scale, sum3)
                sum0 = tl.fma(y0, scale * a_scale, sum0)
                sum1 = tl.fma(y1, scale * b_scale, sum1)
    return sum0, sum1, sum2, sum3


@triton.jit
def read_weights(w_ptrs, s_ptrs, GROUPS: tl.constexpr, CHUNK: tl.constexpr):
    """All chunks of a program's weight rows, for `held_products`: (codes, scales), a tuple of chunks each. A function
    of weights alone, so that these reads may be under way before x exists."""
    codes = ()
    scales = ()
    for at in tl.static_range(0, GROUPS, CHUNK):
        codes += (tl.load(w_ptrs + at),)  # type: ignore[assignment]
        scales += (tl.load(s_ptrs + at),)  # type: ignore[assignment]
    return codes, scales


@triton.jit
def held_products(
    codes, scales, x_ptr, xs_ptr, row,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, CHUNK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """`few_products` with one row of x, to the bit, of weights that `read_weights` gave."""
    total = tl.zeros((ROWS, CHUNK), tl.float32)
    for part in tl.static_range(GROUPS // CHUNK):
        x, x_scale = _row(x_ptr + row * (4 * GROUPS), xs_ptr + row * GROUPS, part * CHUNK, GROUPS, CHUNK)
        total = tl.fma(dot1(codes[part], x, PTX), scales[part].to(tl.float32) * x_scale, total)
    return total


@triton.jit
def many_product(
    x_ptrs, codes_ptrs, scale_ptrs,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SIZE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """[ROWS, SIZE] times the transpose of COLUMNS weight rows, 2^-DECODED_EXPONENT times, float32."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    scale = tl.load(scale_ptrs)
    for start in range(0, SIZE, DEPTH):
        # A few bytes a thread cannot be copied ahead to shared memory as x and the codes are: the scales of the next
        # step wait in registers. The last step reads its own again.
        next_scale = tl.load(scale_ptrs + tl.minimum(start + DEPTH, SIZE - DEPTH) // 16)
        x = tl.load(x_ptrs + start)
        w = decode16(tl.load(codes_ptrs + start // 16), scale, COLUMNS, DEPTH // 16, PTX)
        total = dot_bfloat16(x, tl.trans(w), total, PTX)
        scale = next_scale
    return total


@triton.jit
def _scale(x_ptr, out_ptr, scale_ptr, SIZE: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr):
    let_next_start(PDL)
    row = tl.program_id(1).to(tl.int64)
    wait_for_inputs(PDL)
    scale_row(x_ptr + row * SIZE, out_ptr + row * SIZE, scale_ptr + row * (SIZE // 16), tl.program_id(0), SIZE, PARTS)


@triton.jit
def _linear_rows(
    w_ptrs, s_ptrs, factor, x_ptr, x_scale_ptr, first, num_rows, out_ptr, column,
    TOKENS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    UNROLL: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """TOKENS rows of x from `first` on; of three, the last is made twice."""
    r1 = first + 1
    r2 = first + 2
    r3 = tl.minimum(first + 3, num_rows - 1)
    y0, y1, y2, y3 = few_products(
        w_ptrs, s_ptrs, x_ptr, x_scale_ptr, first, r1, r2, r3, TOKENS, ROWS, K // 16, CHUNK, UNROLL, PTX
    )
    dtype = out_ptr.dtype.element_ty
    tl.store(out_ptr + first * N + column, (tl.sum(y0, axis=1) * factor).to(dtype))
    if TOKENS > 1:
        tl.store(out_ptr + r1 * N + column, (tl.sum(y1, axis=1) * factor).to(dtype))
    if TOKENS > 2:
        tl.store(out_ptr + r2 * N + column, (tl.sum(y2, axis=1) * factor).to(dtype))
        tl.store(out_ptr + r3 * N + column, (tl.sum(y3, axis=1) * factor).to(dtype))


@triton.jit(do_not_specialize=["half_groups", "num_rows"])
def _linear_few(
    codes_ptr, scale_ptr, factor_ptr, x_ptr, x_scale_ptr, out_ptr, half_groups, num_rows,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr, CHUNK: tl.constexpr,
    UNROLL: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    column = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * GROUP_ROWS
    group = tl.arange(0, CHUNK)
    w = codes_ptr + column[:, None].to(tl.int64) * (K // 16) + group[None, :]
    # The scales' addresses must not look more aligned than two bytes, or each thread takes 16 groups of a row and the
    # reads of the codes lie 128 bytes apart: so their stride is an argument of which nothing is known but 2.
    s = scale_ptr + column[:, None].to(tl.int64) * (2 * half_groups) + group[None, :]
    factor = tl.load(factor_ptr)
    wait_for_inputs(PDL)
    if num_rows - first == 1:
        _linear_rows(
            w, s, factor, x_ptr, x_scale_ptr, first, num_rows, out_ptr, column, 1, N, K, ROWS, CHUNK, UNROLL, PTX
        )
    elif num_rows - first == 2:
        _linear_rows(
            w, s, factor, x_ptr, x_scale_ptr, first, num_rows, out_ptr, column, 2, N, K, ROWS, CHUNK,
            1 if UNROLL == 1 else UNROLL // 2, PTX,
        )  # fmt: skip
    else:
        _linear_rows(
            w, s, factor, x_ptr, x_scale_ptr, first, num_rows, out_ptr, column, 4, N, K, ROWS, CHUNK, 1, PTX
        )


@triton.jit(do_not_specialize=["half_groups", "num_rows"])
def _linear_many(
    codes_ptr, scale_ptr, factor_ptr, x_ptr, out_ptr, half_groups, num_rows,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    group = tl.arange(0, DEPTH // 16)
    codes_ptrs = codes_ptr + column[:, None] * (K // 16) + group[None, :]
    scale_ptrs = scale_ptr + column[:, None] * (2 * half_groups) + group[None, :]  # as in _linear_few
    x_ptrs = x_ptr + tl.where(is_row, row, 0)[:, None].to(tl.int64) * K + tl.arange(0, DEPTH)[None, :]
    factor = tl.load(factor_ptr) * 2.0**DECODED_EXPONENT
    wait_for_inputs(PDL)
    y = many_product(x_ptrs, codes_ptrs, scale_ptrs, ROWS, COLUMNS, DEPTH, K, PTX) * factor
    to = out_ptr + row[:, None].to(tl.int64) * N + column[None, :]
    tl.store(to, y.to(out_ptr.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def _reorder(words_ptr, num_words, WORDS: tl.constexpr):
    """packing.reorder of 32-bit words, in place."""
    at = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    words = tl.load(words_ptr + at, mask=at < num_words, other=0)
    out = tl.zeros((WORDS,), tl.int32)
    for code in tl.static_range(8):
        half = 16 * (code % 2)
        out |= ((words >> (4 * code)) & 7) << (_MAGNITUDES[code // 2] + half)
        out |= ((words >> (4 * code + 3)) & 1) << (_SIGNS[code // 2] + half)
    tl.store(words_ptr + at, out, mask=at < num_words)


def reorder_(packed: Tensor) -> Tensor:
    """`packing.reorder` in place: packed [..., K/2] uint8, contiguous -> the same memory as [..., K/16] int64."""
    words = packed.view(torch.int32)
    if not words.is_contiguous():
        raise ValueError("codes are reordered in place, and these are not contiguous")
    num_words = words.numel()
    _reorder[(triton.cdiv(num_words, REORDER_WORDS),)](words, num_words, WORDS=REORDER_WORDS)
    return packed.view(torch.int64)


@dataclass(frozen=True, slots=True)
class LinearWorkspace:
    """x as the form for few rows reads it."""

    x: Tensor  # [T, 4, K/16, 4] float16
    scale: Tensor  # [T, K/16] float32

    @classmethod
    def allocate(cls, max_rows: int, columns: int, device: torch.device) -> LinearWorkspace:
        return cls(
            torch.empty(max_rows, 4, columns // 16, 4, dtype=torch.float16, device=device),
            torch.empty(max_rows, columns // 16, dtype=torch.float32, device=device),
        )


def nvfp4_linear(
    x: Tensor, weight: PackedWeight, *, workspace: LinearWorkspace, config: LinearConfig, pdl: bool
) -> Tensor:
    """x [T, K] bfloat16, contiguous, times a weight [N, K] of one part -> [T, N] of x's dtype."""
    num_rows, size = x.shape
    specs = LinearSpecs(len(weight.codes), size, config, x.is_cuda, pdl)
    out = x.new_empty(num_rows, specs.rows)
    if num_rows > config.max_few:
        spec = specs.many()
        spec.launch(
            (specs.rows // int(spec.constants["COLUMNS"]), triton.cdiv(num_rows, config.many.rows)),
            weight.codes, weight.scale, weight.factor, x, out, size // 32, num_rows, pdl=pdl,
        )  # fmt: skip
        return out
    spec = specs.scale()
    spec.launch((int(spec.constants["PARTS"]), num_rows), x, workspace.x, workspace.scale, pdl=pdl)
    spec = specs.few()
    spec.launch(
        (specs.rows // int(spec.constants["ROWS"]), triton.cdiv(num_rows, GROUP_ROWS)),
        weight.codes, weight.scale, weight.factor, workspace.x.view(torch.int64), workspace.scale, out, size // 32,
        num_rows, pdl=pdl,
    )  # fmt: skip
    return out


def few_constants(columns: int, program: FewProgram) -> dict[str, int]:
    """How `few_products` walks a row of `columns` columns."""
    chunk = tile(columns // 16, CHUNK)
    return {"CHUNK": chunk, "UNROLL": tile(columns // 16 // chunk, program.unroll)}


@dataclass(frozen=True, slots=True)
class LinearSpecs:
    """The variants of one weight's launches."""

    rows: int
    columns: int
    config: LinearConfig
    ptx: bool
    pdl: bool

    def scale(self) -> KernelSpec:
        return KernelSpec(
            "_scale", _scale, {"x_ptr": "*bf16", "out_ptr": "*fp16", "scale_ptr": "*fp32"},
            {"SIZE": self.columns, "PARTS": tile(self.columns // 16, 16), "PDL": self.pdl}, num_warps=4,
        )  # fmt: skip

    def few(self) -> KernelSpec:
        program = self.config.few
        return KernelSpec(
            f"_linear_few, {program}", _linear_few,
            {"codes_ptr": "*i64", "scale_ptr": "*fp8e4nv", "factor_ptr": "*fp32", "x_ptr": "*i64",
             "x_scale_ptr": "*fp32", "out_ptr": "*bf16", "half_groups": "i32", "num_rows": "i32"},
            {"N": self.rows, "K": self.columns, "ROWS": tile(self.rows, program.rows), "GROUP_ROWS": GROUP_ROWS,
             "PTX": self.ptx, "PDL": self.pdl, **few_constants(self.columns, program)},
            program.num_warps, max_registers=program.max_registers, needs=("fma.rn.f16x2",),
        )  # fmt: skip

    def many(self) -> KernelSpec:
        part = self.config.many
        return KernelSpec(
            f"_linear_many, {part}", _linear_many,
            {"codes_ptr": "*i64", "scale_ptr": "*fp8e4nv", "factor_ptr": "*fp32", "x_ptr": "*bf16",
             "out_ptr": "*bf16", "half_groups": "i32", "num_rows": "i32"},
            {"N": self.rows, "K": self.columns, "ROWS": part.rows, "COLUMNS": tile(self.rows, part.columns),
             "DEPTH": tile(self.columns, part.depth), "PTX": self.ptx, "PDL": self.pdl},
            part.num_warps, part.num_stages, needs=("mma",),
        )  # fmt: skip


def specs(config: LinearConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The variants for the real model's shared expert: gate and up, and down."""
    found = []
    for rows, columns in ((4096, 4096), (4096, 2048)):
        linear = LinearSpecs(rows, columns, config, ptx=True, pdl=pdl)
        found += [linear.scale(), linear.few(), linear.many()]
    words = {"words_ptr": "*i32", "num_words": "i32:16"}
    return [*found, KernelSpec("_reorder", _reorder, words, {"WORDS": REORDER_WORDS}, 4, DEFAULT_STAGES)]
