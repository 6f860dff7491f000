"""Triton form of kernels/bf16_linear; the contract stands in the folder's `__init__`.

`_rows_at_once`: a program reads whole rows of the weight into registers in one go and multiplies them with each
token on the ordinary lanes: no shared memory, no loop over K, 32 KiB in flight a program. Its work grows with the
tokens: an H200's lanes keep up with its bus at one token (two cost 2 of o's 10 us more), a GB10's to 8, as it has
0.46 of the lanes and 0.06 of the bus.
`_tiles`: weight tiles stream through shared memory into the matrix unit, with the weight as its left operand, so
that 64 rows of it meet 16 or 32 tokens; K is cut into stretches until the device is full.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec
from sparkstral.kernels.prefetch import prefetch_pieces


@dataclass(frozen=True, slots=True)
class LinearConfig:
    max_fma_tokens: int  # more take _tiles; 0 to 8
    fma_elements: int  # of the weight in a program's registers: a power of 2
    fma_num_warps: int
    rows: int  # of a weight tile
    depth: int  # its columns
    num_warps: int
    num_stages: int
    num_programs: int  # that _tiles cuts K for, if N alone does not give as many
    max_parts: int


CONFIGS = {
    # 132 SMs, measured on an H200, 2026-12-02, in us for a, q_b, o. One token: 8,192 elements a program 4.0, 3.3, 9.5;
    # 16,384 4.1, 3.7, 9.4; tiles 5.7, 3.7, 10.6. Two tokens: 4.7, 4.2, 11.7 against tiles' 5.7, 3.7, 10.7; eight: 9.8,
    # 10.7, 24.7 against 5.7, 3.8, 10.8. A tile of 64 x 128 is 16 KiB: 5 stages keep 64 KiB in flight, 2 programs an SM;
    # 3 stages take 14.5 for o.
    (9, 0): LinearConfig(
        max_fma_tokens=1, fma_elements=8192, fma_num_warps=4,
        rows=64, depth=128, num_warps=4, num_stages=5, num_programs=160, max_parts=8,
    ),
    # 48 SMs and 273 GB/s: 6 KB in flight an SM are enough, and 8,192 elements leave registers for the tokens (16,384
    # spill at two); 4 stages fit 99 KiB beside the tokens' tile.
    (12, 1): LinearConfig(
        max_fma_tokens=8, fma_elements=8192, fma_num_warps=4,
        rows=64, depth=128, num_warps=4, num_stages=4, num_programs=48, max_parts=4,
    ),
}  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def _rows_at_once(
    x_ptr, weight_ptr, scale_ptr, out_ptr, num_tokens,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr,
    SCALED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, DEPTH)
    weight_at = weight_ptr + row.to(tl.int64)[:, None] * K + k[None, :]
    weight = tl.load(weight_at, mask=(row < N)[:, None] & (k < K)[None, :], other=0.0)
    if SCALED:
        scale = tl.load(scale_ptr + row, mask=row < N, other=0.0)
    wait_for_inputs(PDL)
    for i in tl.static_range(TOKENS):
        token = tl.minimum(i, num_tokens - 1)  # past the end the last token is done again
        x = tl.load(x_ptr + token * K + k, mask=k < K, other=0.0)
        product = tl.sum(weight.to(tl.float32) * x.to(tl.float32)[None, :], axis=1)
        if SCALED:
            product *= scale
        tl.store(out_ptr + token * N + row, product.to(out_ptr.dtype.element_ty), mask=row < N)


@triton.jit
def _prefetch(weight_ptr, first_row, first_k, K: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """Bring the first DEPTH columns of the program's rows to the L2 cache, two requests a row."""
    half = tl.arange(0, 2 * ROWS)
    at = weight_ptr + (first_row + half // 2).to(tl.int64) * K + first_k + (half % 2) * (DEPTH // 2)
    num_bytes = DEPTH // 2 * (weight_ptr.dtype.element_ty.primitive_bitwidth // 8)
    prefetch_pieces(at.to(tl.int64), tl.full([2 * ROWS], num_bytes, tl.int32))


@triton.jit(do_not_specialize=["num_tokens"])
def _tiles(
    x_ptr, weight_ptr, scale_ptr, out_ptr, num_tokens,
    N: tl.constexpr, K: tl.constexpr, PART_DEPTH: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr, SCALED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    part = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    is_row, is_token = row < N, token < num_tokens
    if PDL and N % ROWS == 0 and K % PART_DEPTH == 0:
        # While the kernel before this one ends, the bus is free for what does not depend on it.
        _prefetch(weight_ptr, tl.program_id(0) * ROWS, part * PART_DEPTH, K, ROWS, min(PART_DEPTH, 1024))
    wait_for_inputs(PDL)
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for first in range(part * PART_DEPTH, min((part + 1) * PART_DEPTH, K), DEPTH):
        k = first + tl.arange(0, DEPTH)
        weight_at = weight_ptr + row.to(tl.int64)[:, None] * K + k[None, :]
        x_at = x_ptr + token[:, None] * K + k[None, :]
        if K % DEPTH == 0:
            weight = tl.load(weight_at, mask=is_row[:, None], other=0.0)
            x = tl.load(x_at, mask=is_token[:, None], other=0.0)
        else:
            weight = tl.load(weight_at, mask=is_row[:, None] & (k < K)[None, :], other=0.0)
            x = tl.load(x_at, mask=is_token[:, None] & (k < K)[None, :], other=0.0)
        total = tl.dot(weight.to(x.dtype), tl.trans(x), total)
    if SCALED:
        total *= tl.load(scale_ptr + row, mask=is_row, other=0.0)[:, None]
    out = out_ptr + (part * num_tokens + token[None, :]).to(tl.int64) * N + row[:, None]
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_token[None, :])


def num_parts(n: int, k: int, config: LinearConfig) -> int:
    """Stretches that K is cut into: enough programs for the device, at least two tiles each."""
    parts = 1
    while (
        parts < config.max_parts
        and triton.cdiv(n, config.rows) * parts < config.num_programs
        and k >= 4 * parts * config.depth
    ):
        parts *= 2
    return parts


def bf16_linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype, *, config: LinearConfig, pdl: bool) -> Tensor:
    """x [M, K], weight [N, K] -> parts [S, M, N]: float32, or out_dtype if S is 1."""
    return product(x, weight, None, out_dtype, config=config, pdl=pdl)


def product(
    x: Tensor, weight: Tensor, scale: Tensor | None, out_dtype: torch.dtype, *, config: LinearConfig, pdl: bool
) -> Tensor:
    """bf16_linear, or with each row's scale [N] float32 kernels/fp8_linear."""
    num_tokens = len(x)
    n, k = weight.shape
    factors = x if scale is None else scale  # not read where there is none
    if num_tokens <= config.max_fma_tokens:
        out = x.new_empty(1, num_tokens, n, dtype=out_dtype)
        constants = _fma_constants(config, n, k, triton.next_power_of_2(num_tokens), scale is not None, pdl)
        _rows_at_once[(triton.cdiv(n, constants["ROWS"]),)](
            x, weight, factors, out, num_tokens, **constants, num_warps=config.fma_num_warps, launch_pdl=pdl
        )
        return out
    parts = num_parts(n, k, config)
    out = x.new_empty(parts, num_tokens, n, dtype=out_dtype if parts == 1 else torch.float32)
    constants = _tile_constants(config, n, k, parts, 16 if num_tokens <= 16 else 32, scale is not None, pdl)
    _tiles[(triton.cdiv(n, config.rows), parts, triton.cdiv(num_tokens, constants["TOKENS"]))](
        x, weight, factors, out, num_tokens, **constants,
        num_warps=config.num_warps, num_stages=config.num_stages, launch_pdl=pdl,
    )  # fmt: skip
    return out


def _fma_constants(config: LinearConfig, n: int, k: int, tokens: int, scaled: bool, pdl: bool) -> dict[str, int]:
    depth = triton.next_power_of_2(k)
    rows = max(1, config.fma_elements // depth)
    return {"N": n, "K": k, "ROWS": rows, "DEPTH": depth, "TOKENS": tokens, "SCALED": scaled, "PDL": pdl}


def _tile_constants(
    config: LinearConfig, n: int, k: int, parts: int, tokens: int, scaled: bool, pdl: bool
) -> dict[str, int]:
    part_depth = triton.cdiv(triton.cdiv(k, parts), config.depth) * config.depth
    return {
        "N": n, "K": k, "PART_DEPTH": part_depth,
        "ROWS": config.rows, "DEPTH": config.depth, "TOKENS": tokens, "SCALED": scaled, "PDL": pdl,
    }  # fmt: skip


# [N, K] of the real model: q_a and kv_a, q_b, o_proj, head.
SHAPES = {"a": (1344, 4096), "q_b": (4096, 1024), "o": (4096, 4096), "head": (131072, 4096)}


def specs(config: LinearConfig, *, pdl: bool = True, scaled: bool = False) -> list[KernelSpec]:
    """Both forms for the real model's four weights."""
    found = []
    weight, scale = ("*fp8e4nv", "*fp32") if scaled else ("*bf16", "*bf16")
    for name, (n, k) in SHAPES.items():
        types = {"x_ptr": "*bf16", "weight_ptr": weight, "scale_ptr": scale, "num_tokens": "i32"}
        whole = "*fp32" if name == "head" else "*bf16"
        for tokens in (1, 2, 4, 8):
            if tokens <= config.max_fma_tokens:
                constants = _fma_constants(config, n, k, tokens, scaled, pdl)
                found.append(
                    KernelSpec(
                        f"{name}, at once, {tokens} tokens", _rows_at_once, {**types, "out_ptr": whole}, constants,
                        config.fma_num_warps, DEFAULT_STAGES,
                    )
                )
        for tokens in (16, 32):
            parts = num_parts(n, k, config)
            constants = _tile_constants(config, n, k, parts, tokens, scaled, pdl)
            out = {"out_ptr": whole if parts == 1 else "*fp32"}
            found.append(
                KernelSpec(
                    f"{name}, tiles, {tokens} tokens", _tiles, {**types, **out}, constants, config.num_warps,
                    config.num_stages,
                )
            )
    return found
