"""Triton form of kernels/mla_decode; the contract stands in the folder's `__init__`.

Three launches. `absorb`: a program a head (and group of tokens) sums the query's parts, rotates and scales it and
takes it through w_uk. `_attend_splits`: a sequence is cut into splits by its length alone; programs share the list
of (request, split) evenly, each walks its latents once for a tile of (token, head) rows and leaves a normalised
sum and its log-sum-exp. `_combine`: a program a head (and group of tokens) joins the splits in their order and
takes the result through w_uv. No atomics: each number is made in one order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels import latent_pool
from sparkstral.kernels.fp8_quantize import Fp8Rows
from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec
from sparkstral.kernels.parts import sum_parts
from sparkstral.kernels.prefetch import prefetch

PREFETCH_PIECE = tl.constexpr(8192)  # bytes of a request
MAX_REQUESTS = 128  # of one launch: their lengths are one vector in a program's registers


@dataclass(frozen=True, slots=True)
class RowTile:
    """How one program attends: `rows` (token, head) pairs against `tokens` latents at a time."""

    rows: int
    tokens: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """`single` serves launches whose requests have at most single.rows rows (a decode step of 32 heads), `several`
    the others. Both see the same splits."""

    single: RowTile
    several: RowTile
    split_tokens: int  # the shortest split; a multiple of both tiles' tokens
    max_splits: int  # of a sequence, however long: a power of 2
    num_programs: int  # that share the splits of all requests
    combine_splits: int  # that a program of _combine reads at once
    value_rows: int  # of w_uv that a program of _combine multiplies
    num_warps: int  # of absorb and _combine
    fp8_tiles: tuple[RowTile, RowTile]  # `single` and `several` of a cache in FP8
    prefetch_bytes: int = 0  # of the next weight that absorb brings to L2, at most


CONFIGS = {
    # 132 SMs, 227 KiB of shared memory. 128 splits: a sequence of 30,000 tokens alone gives 118 programs of 256
    # tokens; two programs an SM hide each other's waits. Measured on an H200 on 2026-12-02: 8 sequences of 8,000 tokens
    # take 75 us in 125 splits each and 50 in 63; combining 32 splits at once instead of 16 brings 30,000 tokens
    # from 36.7 to 28.9 us, 128 values instead of 64 to 29.9 and 8 x 8,000 from 75 to 60.
    # absorb to combine leave the bus idle for about 15 us: 16 MiB of o_proj's 32 come to the 50 MB of L2 meanwhile, its
    # end, as the programs of its start take their rows to registers when combine begins (reasoned, not measured).
    # fp8_tiles: what spills no registers, where codes become bfloat16 in them (not measured).
    (9, 0): DecodeConfig(
        single=RowTile(rows=32, tokens=64, num_warps=4, num_stages=5),
        several=RowTile(rows=64, tokens=64, num_warps=8, num_stages=5),
        split_tokens=64,
        max_splits=128,
        num_programs=264,
        combine_splits=32,
        value_rows=128,
        num_warps=8,
        fp8_tiles=(RowTile(rows=32, tokens=64, num_warps=8, num_stages=5), RowTile(64, 32, 8, 3)),
        prefetch_bytes=16 << 20,
    ),
    # 48 SMs, 99 KiB: tiles of 32 latents (20 KiB) fit three times beside 64 rows of queries. 64 splits at most:
    # fewer sums to write and read again, and at 273 GB/s an SM needs only 6 KB in flight. No prefetch: what waits in
    # the registers of o_proj's first programs, 8 MB, is more than the bus brings in the launches before.
    (12, 1): DecodeConfig(
        single=RowTile(rows=32, tokens=32, num_warps=4, num_stages=5),
        several=RowTile(rows=64, tokens=32, num_warps=8, num_stages=3),
        split_tokens=64,
        max_splits=64,
        num_programs=96,
        combine_splits=16,
        value_rows=64,
        num_warps=8,
        fp8_tiles=(RowTile(rows=32, tokens=32, num_warps=4, num_stages=5), RowTile(64, 32, 8, 3)),
    ),
}


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """What the splits leave for `_combine`; one serves all layers, as they follow each other on one stream."""

    sums: Tensor  # [rows, W] float32
    log_sums: Tensor  # [rows] float32, base 2


def allocate_workspace(
    config: DecodeConfig, max_requests: int, max_query_len: int, num_heads: int, width: int, device: torch.device
) -> DecodeWorkspace:
    """For launches of up to `max_requests` requests with up to `max_query_len` queries each: max_requests ·
    max_splits · max_query_len · num_heads rows of 4·(width + 1) bytes (135 MB for 32 requests on SM 9.0)."""
    rows = max_requests * config.max_splits * max_query_len * num_heads
    return DecodeWorkspace(
        torch.empty(rows, width, dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.float32, device=device),
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _absorb(
    parts_ptr, rotation_ptr, query_scale_ptr, w_uk_ptr, uk_scale_ptr, out_ptr, prefetch_ptr, num_tokens,
    NUM_HEADS: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, LATENT: tl.constexpr, SCALED: tl.constexpr,
    PARTS: tl.constexpr, TOKENS: tl.constexpr, PREFETCH: tl.constexpr, THREADS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    head = tl.program_id(0)
    nope = tl.arange(0, NOPE)
    pair = tl.arange(0, ROPE // 2)
    latent = tl.arange(0, LATENT)
    w_uk = tl.load(w_uk_ptr + (head * NOPE + nope[:, None]) * LATENT + latent[None, :])
    if SCALED:
        uk_scale = tl.load(uk_scale_ptr + head * NOPE + nope)
    if PDL and PREFETCH > 0:  # noqa: SIM102 (constants, apart from what is none)
        if tl.program_id(1) == 0:
            share = PREFETCH // (prefetch_ptr.dtype.element_ty.primitive_bitwidth // 8)
            prefetch(prefetch_ptr + head * share, PREFETCH, PREFETCH_PIECE, THREADS)
    wait_for_inputs(PDL)
    dtype = out_ptr.dtype.element_ty
    part_stride = num_tokens * NUM_HEADS * (NOPE + ROPE)
    for i in tl.static_range(TOKENS):
        token = tl.program_id(1) * TOKENS + i
        if token < num_tokens:
            scale = tl.load(query_scale_ptr + token).to(tl.float32)
            q_ptr = parts_ptr + (token * NUM_HEADS + head) * (NOPE + ROPE)
            out = out_ptr + (token * NUM_HEADS + head) * (LATENT + ROPE)
            # All reads come first: one wait for memory, not two.
            q_nope = sum_parts(q_ptr + nope, part_stride, nope < NOPE, dtype, PARTS)
            rope_ptr = q_ptr + NOPE + 2 * pair
            even = sum_parts(rope_ptr, part_stride, pair < ROPE // 2, dtype, PARTS)
            odd = sum_parts(rope_ptr + 1, part_stride, pair < ROPE // 2, dtype, PARTS)
            cos = tl.load(rotation_ptr + (token * (ROPE // 2) + pair) * 2)
            sin = tl.load(rotation_ptr + (token * (ROPE // 2) + pair) * 2 + 1)
            q_nope = (q_nope * scale).to(dtype).to(tl.float32)
            if SCALED:
                q_nope *= uk_scale
            q_latent = tl.sum(q_nope[:, None] * w_uk.to(tl.float32), axis=0)
            tl.store(out + latent, q_latent.to(dtype))
            turned_even = (even * cos - odd * sin).to(dtype).to(tl.float32)
            turned_odd = (even * sin + odd * cos).to(dtype).to(tl.float32)
            tl.store(out + LATENT + 2 * pair, (turned_even * scale).to(dtype))
            tl.store(out + LATENT + 2 * pair + 1, (turned_odd * scale).to(dtype))


@triton.jit
def _split_size(seq_len, SPLIT_TOKENS: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Tokens of each split of a sequence: of its length alone, so that its result is that of any batch.

    They are doubled once at half of MAX_SPLITS: the sums of many splits cost more than longer walks."""
    seq_len = tl.maximum(seq_len, 1)
    doubled = tl.minimum(tl.cdiv(seq_len, SPLIT_TOKENS * (MAX_SPLITS // 2)), 2)
    return tl.maximum(tl.cdiv(seq_len, SPLIT_TOKENS * MAX_SPLITS), doubled) * SPLIT_TOKENS


@triton.jit
def _find_split(item, requests, seq_lens, num_splits, ends):
    """(request, its length, split) of an item of the list of all requests' splits; past its end, a length of 0."""
    request = tl.sum((ends <= item).to(tl.int32), axis=0)
    chosen = requests == request
    seq_len = tl.sum(tl.where(chosen, seq_lens, 0), axis=0)
    return request, seq_len, item - tl.sum(tl.where(chosen, ends - num_splits, 0), axis=0)


@triton.jit
def _load_codes(
    pool_ptr, table, start, end,
    LATENT: tl.constexpr, BLOCK_SIZE: tl.constexpr, SLOT: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The codes of a tile of a cache in FP8, and its block. They are asked for one tile ahead: the compiler does not do
    that for bytes which two products read in two orders."""
    token = start + tl.arange(0, TOKENS)
    block = tl.load(table + start // BLOCK_SIZE, mask=start < end, other=0).to(tl.int64)  # a tile lies within one
    block_ptr = pool_ptr + block * (BLOCK_SIZE * SLOT)
    at = block_ptr.to(tl.pointer_type(tl.float8e4nv)) + (token % BLOCK_SIZE)[:, None] * LATENT
    return tl.load(at + tl.arange(0, LATENT)[None, :], mask=(token < end)[:, None], other=0.0), block_ptr


@triton.jit(do_not_specialize=["num_requests", "table_stride", "max_rows"])
def _attend_splits(
    q_ptr, pool_ptr, tables_ptr, cu_seqlens_ptr, seq_lens_ptr, sums_ptr, log_sums_ptr,
    num_requests, table_stride, max_rows, scale_log2,
    NUM_HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, SPLIT_TOKENS: tl.constexpr, MAX_SPLITS: tl.constexpr,
    REQUESTS: tl.constexpr, FP8: tl.constexpr, THREADS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    slot: tl.constexpr = LATENT + 2 * ROPE + 2 if FP8 else LATENT + ROPE  # elements of the pool
    requests = tl.arange(0, REQUESTS)
    begins = tl.load(cu_seqlens_ptr + requests, mask=requests < num_requests, other=0)
    next_begins = tl.load(cu_seqlens_ptr + 1 + requests, mask=requests < num_requests, other=0)
    seq_lens = tl.load(seq_lens_ptr + requests, mask=requests < num_requests, other=0)
    num_splits = tl.cdiv(seq_lens, _split_size(seq_lens, SPLIT_TOKENS, MAX_SPLITS))
    ends = tl.cumsum(num_splits, axis=0)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    latent = tl.arange(0, LATENT)
    rope = tl.arange(0, ROPE)
    if PDL:  # noqa: SIM102 (a constant, apart from what is none)
        if tl.program_id(0) == 0:
            # The latents of the program's first split on their way to L2: their blocks' numbers do not depend on this
            # step, and of a block no row is older in L2 than in memory.
            request, seq_len, split = _find_split(tl.program_id(1), requests, seq_lens, num_splits, ends)
            size = _split_size(seq_len, SPLIT_TOKENS, MAX_SPLITS)
            for start in range(split * size, tl.minimum(split * size + size, seq_len), BLOCK_SIZE):
                block = tl.load(tables_ptr + request.to(tl.int64) * table_stride + start // BLOCK_SIZE).to(tl.int64)
                entry: tl.constexpr = slot * (pool_ptr.dtype.element_ty.primitive_bitwidth // 8)
                piece: tl.constexpr = entry * 8 if FP8 else entry  # of a multiple of 16 bytes
                prefetch(pool_ptr + block * (BLOCK_SIZE * slot), BLOCK_SIZE * entry, piece, THREADS)
    wait_for_inputs(PDL)
    for item in range(tl.program_id(1), tl.sum(num_splits, axis=0), tl.num_programs(1)):
        request, seq_len, split = _find_split(item, requests, seq_lens, num_splits, ends)
        first_query = tl.sum(tl.where(requests == request, begins, 0), axis=0)
        num_queries = tl.sum(tl.where(requests == request, next_begins, 0), axis=0) - first_query
        num_rows = num_queries * NUM_HEADS
        if tl.program_id(0) * ROWS < num_rows:
            is_row = row < num_rows
            # A row's token sees the keys up to its own; the tile walks to the last of its last row.
            last_seen = seq_len - num_queries + row // NUM_HEADS
            tile_end = tl.minimum(num_rows, (tl.program_id(0) + 1) * ROWS) - 1
            size = _split_size(seq_len, SPLIT_TOKENS, MAX_SPLITS)
            begin = split * size
            end = tl.minimum(begin + size, seq_len - num_queries + tile_end // NUM_HEADS + 1)
            table = tables_ptr + request.to(tl.int64) * table_stride
            q = q_ptr + (first_query * NUM_HEADS + row[:, None]).to(tl.int64) * (LATENT + ROPE)
            q_latent = tl.load(q + latent[None, :], mask=is_row[:, None], other=0.0)
            q_rope = tl.load(q + LATENT + rope[None, :], mask=is_row[:, None], other=0.0)
            peak = tl.full([ROWS], float("-inf"), tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            sums = tl.zeros([ROWS, LATENT], tl.float32)
            if FP8:
                codes, block_ptr = _load_codes(pool_ptr, table, begin, end, LATENT, BLOCK_SIZE, slot, TOKENS)
            for start in range(begin, end, TOKENS):
                token = start + tl.arange(0, TOKENS)
                inside = token < end
                offset = token % BLOCK_SIZE
                if FP8:
                    k_ptr = (block_ptr + BLOCK_SIZE * LATENT).to(tl.pointer_type(tl.bfloat16))
                    scale_ptr = (block_ptr + BLOCK_SIZE * (LATENT + 2 * ROPE)).to(tl.pointer_type(tl.bfloat16))
                    c_kv = codes.to(q_latent.dtype)
                    k_rope = tl.load(k_ptr + offset[:, None] * ROPE + rope[None, :], mask=inside[:, None], other=0.0)
                    scale = tl.load(scale_ptr + offset, mask=inside, other=0.0).to(tl.float32)
                    codes, block_ptr = _load_codes(
                        pool_ptr, table, start + TOKENS, end, LATENT, BLOCK_SIZE, slot, TOKENS
                    )
                    # A power of two: where it multiplies changes no bit.
                    scores = tl.dot(q_latent, tl.trans(c_kv)) * scale[None, :]
                    scores = tl.dot(q_rope, tl.trans(k_rope.to(q_rope.dtype)), scores)
                else:
                    block = tl.load(table + start // BLOCK_SIZE).to(tl.int64)  # a tile lies within one block
                    row_ptr = pool_ptr + block * (BLOCK_SIZE * slot) + offset[:, None] * (LATENT + ROPE)
                    c_kv = tl.load(row_ptr + latent[None, :], mask=inside[:, None], other=0.0)
                    k_rope = tl.load(row_ptr + LATENT + rope[None, :], mask=inside[:, None], other=0.0)
                    scores = tl.dot(q_rope, tl.trans(k_rope))
                    scores = tl.dot(q_latent, tl.trans(c_kv), scores)
                scores = tl.where(token[None, :] <= last_seen[:, None], scores * scale_log2, float("-inf"))
                new_peak = tl.maximum(peak, tl.max(scores, axis=1))
                # A row that has seen no key yet keeps -inf as its peak; exp2(-inf - 0) is the 0 that it needs.
                shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
                weights = tl.exp2(scores - shift[:, None])
                fade = tl.exp2(peak - shift)
                total = total * fade + tl.sum(weights, axis=1)
                if FP8:
                    weights *= scale[None, :]
                sums = tl.dot(weights.to(c_kv.dtype), c_kv, sums * fade[:, None])
                peak = new_peak
            out_row = (request * MAX_SPLITS + split).to(tl.int64) * max_rows + row
            seen = total > 0
            sums = sums / tl.where(seen, total, 1.0)[:, None]
            # A row with NaN is not seen either: its weight is 0, and 0 · NaN still reaches the answer.
            log_sum = tl.where(seen, peak + tl.log2(tl.where(seen, total, 1.0)), float("-inf"))
            tl.store(sums_ptr + out_row[:, None] * LATENT + latent[None, :], sums, mask=is_row[:, None])
            tl.store(log_sums_ptr + out_row, log_sum, mask=is_row)


@triton.jit(do_not_specialize=["num_tokens", "num_requests", "max_rows"])
def _combine(
    sums_ptr, log_sums_ptr, cu_seqlens_ptr, seq_lens_ptr, w_uv_ptr, uv_scale_ptr, out_ptr,
    num_tokens, num_requests, max_rows,
    NUM_HEADS: tl.constexpr, LATENT: tl.constexpr, VALUE: tl.constexpr, VALUE_ROWS: tl.constexpr,
    SCALED: tl.constexpr, SPLITS: tl.constexpr, SPLIT_TOKENS: tl.constexpr, MAX_SPLITS: tl.constexpr,
    TOKENS: tl.constexpr, REQUESTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    head = tl.program_id(0)
    latent = tl.arange(0, LATENT)
    value = tl.program_id(1) * VALUE_ROWS + tl.arange(0, VALUE_ROWS)
    w_uv = tl.load(w_uv_ptr + (head * VALUE + value[:, None]) * LATENT + latent[None, :])
    requests = tl.arange(0, REQUESTS)
    ends = tl.load(cu_seqlens_ptr + 1 + requests, mask=requests < num_requests, other=2147483647)
    all_splits = tl.arange(0, MAX_SPLITS)
    begins = tl.load(cu_seqlens_ptr + requests, mask=requests < num_requests, other=0)
    seq_lens = tl.load(seq_lens_ptr + requests, mask=requests < num_requests, other=0)
    some_splits = tl.arange(0, SPLITS)
    wait_for_inputs(PDL)
    dtype = out_ptr.dtype.element_ty
    for i in tl.static_range(TOKENS):
        token = tl.program_id(2) * TOKENS + i
        request = tl.sum((ends <= token).to(tl.int32), axis=0)
        if (token < num_tokens) & (request < num_requests):
            seq_len = tl.sum(tl.where(requests == request, seq_lens, 0), axis=0)
            num_splits = tl.cdiv(seq_len, _split_size(seq_len, SPLIT_TOKENS, MAX_SPLITS))
            row = (token - tl.sum(tl.where(requests == request, begins, 0), axis=0)) * NUM_HEADS + head
            base = (request * MAX_SPLITS).to(tl.int64) * max_rows + row
            log_sums = tl.load(
                log_sums_ptr + base + all_splits.to(tl.int64) * max_rows,
                mask=all_splits < num_splits, other=float("-inf"),
            )  # fmt: skip
            peak = tl.max(log_sums, axis=0)
            peak = tl.where(peak == float("-inf"), 0.0, peak)
            total = tl.sum(tl.exp2(log_sums - peak), axis=0)
            means = tl.zeros([SPLITS, LATENT], tl.float32)  # added up once, as that takes all warps
            for start in range(0, num_splits, SPLITS):
                split = start + some_splits
                at = base + split.to(tl.int64) * max_rows
                is_split = split < num_splits
                weight = tl.exp2(tl.load(log_sums_ptr + at, mask=is_split, other=float("-inf")) - peak)
                sums = tl.load(sums_ptr + at[:, None] * LATENT + latent[None, :], mask=is_split[:, None], other=0.0)
                means += sums * weight[:, None]
            mean = (tl.sum(means, axis=0) / tl.where(total > 0, total, 1.0)).to(dtype).to(tl.float32)
            out = tl.sum(w_uv.to(tl.float32) * mean[None, :], axis=1)
            if SCALED:
                out *= tl.load(uv_scale_ptr + head * VALUE + value)
            tl.store(out_ptr + (token * NUM_HEADS + head) * VALUE + value, out.to(dtype))


def absorb(
    parts: Tensor,
    rotation: Tensor,
    query_scale: Tensor,
    w_uk: Tensor | Fp8Rows,
    *,
    config: DecodeConfig,
    pdl: bool,
    next_weight: Tensor | None = None,
) -> Tensor:
    """parts [S, T, N·(64 + P)], rotation [T, P/2] complex64, query_scale [T], w_uk [N, 64, W] -> [T, N, W + P] of
    query_scale's dtype. The end of next_weight, which the first product after attention reads, is brought to L2
    meanwhile."""
    num_parts, num_tokens, _ = parts.shape
    numbers, factors = _numbers_of(w_uk)
    num_heads, _, latent = numbers.shape
    rope = 2 * rotation.shape[1]
    out = query_scale.new_empty(num_tokens, num_heads, latent + rope)
    tokens = _tokens_a_program(num_tokens)
    share = 0 if next_weight is None else _prefetch_share(config, num_heads, next_weight.nbytes)
    end = out if next_weight is None else next_weight.view(-1)[-num_heads * share // next_weight.element_size() :]
    _absorb[(num_heads, triton.cdiv(num_tokens, tokens))](
        parts, torch.view_as_real(rotation), query_scale, numbers, factors, out, end, num_tokens,
        **_absorb_constants(config, numbers.shape, rope, num_parts, tokens, share, w_uk is not numbers, pdl),
        num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def mla_decode(
    q: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    softmax_scale: float,
    w_uv: Tensor | Fp8Rows,
    *,
    max_query_len: int,
    workspace: DecodeWorkspace,
    config: DecodeConfig,
    pdl: bool,
    out: Tensor | None = None,
) -> Tensor:
    """q [T, N, W + P] -> [T, N, 128], or into `out` (contiguous); lengths are int32 on the device, the other shapes as
    in the contract."""
    num_tokens, num_heads, width = q.shape
    num_requests = len(seq_lens)
    if num_requests > MAX_REQUESTS:
        raise ValueError(f"{num_requests} requests in one launch; its programs hold the lengths of {MAX_REQUESTS}")
    numbers, factors = _numbers_of(w_uv)
    _, value, latent = numbers.shape
    max_rows = max_query_len * num_heads
    single, several = _tiles_of(config, latent_pool.is_fp8(pool))
    tile = single if max_rows <= single.rows else several
    programs = min(num_requests * config.max_splits, config.num_programs)
    _attend_splits[(triton.cdiv(max_rows, tile.rows), programs)](
        q, pool, block_tables, cu_seqlens_q, seq_lens, workspace.sums, workspace.log_sums,
        num_requests, block_tables.stride(0), max_rows, softmax_scale * math.log2(math.e),
        **_attend_constants(
            config, tile, num_heads, latent, width - latent, pool.shape[1], latent_pool.is_fp8(pool), pdl
        ),
        num_warps=tile.num_warps, num_stages=tile.num_stages, launch_pdl=pdl,
    )  # fmt: skip
    if out is None:
        out = q.new_empty(num_tokens, num_heads, value)
    tokens = _tokens_a_program(num_tokens)
    _combine[(num_heads, value // config.value_rows, triton.cdiv(num_tokens, tokens))](
        workspace.sums, workspace.log_sums, cu_seqlens_q, seq_lens, numbers, factors, out,
        num_tokens, num_requests, max_rows,
        **_combine_constants(config, numbers.shape, tokens, w_uv is not numbers, pdl),
        num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def _numbers_of(weight: Tensor | Fp8Rows) -> tuple[Tensor, Tensor]:
    """What is multiplied with, and the factors of its rows; without them, the same once more, which nobody reads."""
    return (weight, weight) if isinstance(weight, Tensor) else (weight.codes, weight.scale)


def _tiles_of(config: DecodeConfig, fp8: bool) -> tuple[RowTile, RowTile]:
    """`single` and `several`."""
    return config.fp8_tiles if fp8 else (config.single, config.several)


def _tokens_a_program(num_tokens: int) -> int:
    """Tokens that share one read of a head's w_uk or w_uv: 32 heads times 8 groups fill any device."""
    return 8 if num_tokens > 32 else 4 if num_tokens > 16 else 2 if num_tokens > 8 else 1


def _prefetch_share(config: DecodeConfig, num_heads: int, num_bytes: int) -> int:
    """Bytes of the next weight that a program of absorb asks for."""
    piece = int(PREFETCH_PIECE)
    return min(config.prefetch_bytes, num_bytes) // (num_heads * piece) * piece


def _absorb_constants(
    config: DecodeConfig, w_uk_shape: torch.Size | tuple[int, int, int], rope: int, num_parts: int, tokens: int,
    share: int, scaled: bool, pdl: bool,
) -> dict[str, int | bool]:  # fmt: skip
    num_heads, nope, latent = w_uk_shape
    return {
        "NUM_HEADS": num_heads, "NOPE": nope, "ROPE": rope, "LATENT": latent, "SCALED": scaled,
        "PARTS": num_parts, "TOKENS": tokens, "PREFETCH": share, "THREADS": 32 * config.num_warps, "PDL": pdl,
    }  # fmt: skip


def _attend_constants(
    config: DecodeConfig, tile: RowTile, num_heads: int, latent: int, rope: int, block_size: int, fp8: bool, pdl: bool
) -> dict[str, int | bool]:
    tokens = min(tile.tokens, block_size)
    if block_size % tokens:
        raise ValueError(f"blocks of {block_size} tokens: a tile of {tokens} must lie within one")
    return {
        "NUM_HEADS": num_heads, "LATENT": latent, "ROPE": rope, "BLOCK_SIZE": block_size,
        "ROWS": tile.rows, "TOKENS": tokens,
        "SPLIT_TOKENS": config.split_tokens, "MAX_SPLITS": config.max_splits,
        "REQUESTS": MAX_REQUESTS, "FP8": fp8, "THREADS": 32 * tile.num_warps, "PDL": pdl,
    }  # fmt: skip


def _combine_constants(
    config: DecodeConfig, w_uv_shape: torch.Size | tuple[int, int, int], tokens: int, scaled: bool, pdl: bool
) -> dict[str, int | bool]:
    num_heads, value, latent = w_uv_shape
    return {
        "NUM_HEADS": num_heads, "LATENT": latent, "VALUE": value, "VALUE_ROWS": config.value_rows, "SCALED": scaled,
        "SPLITS": config.combine_splits, "SPLIT_TOKENS": config.split_tokens, "MAX_SPLITS": config.max_splits,
        "TOKENS": tokens, "REQUESTS": MAX_REQUESTS, "PDL": pdl,
    }  # fmt: skip


def specs(config: DecodeConfig, *, num_heads: int = 32, block_size: int = 64, pdl: bool = True) -> list[KernelSpec]:
    """The variants of the real model: attention of a decode step and of drafts; 1 to 8 tokens a program around it,
    for queries in bfloat16 (a cuBLAS product) and in 4 float32 parts (a split one); weights and caches of both
    forms."""
    w_uk, w_uv, rope = (num_heads, 64, 256), (num_heads, 128, 256), 64
    found = []
    forms = (("", "*bf16", "*bf16"), (", FP8", "*fp8e4nv", "*fp32"))
    for tokens, (shown, weight, factors) in product((1, 2, 4, 8), forms):
        for num_parts, dtype in ((1, "*bf16"), (4, "*fp32")):
            found.append(
                KernelSpec(
                    f"absorb, {tokens} tokens, {num_parts} parts{shown}", _absorb,
                    {"parts_ptr": dtype, "rotation_ptr": "*fp32", "query_scale_ptr": "*bf16", "w_uk_ptr": weight,
                     "uk_scale_ptr": factors, "out_ptr": "*bf16", "prefetch_ptr": "*bf16", "num_tokens": "i32"},
                    _absorb_constants(
                        config, w_uk, rope, num_parts, tokens, _prefetch_share(config, num_heads, 1 << 25),
                        bool(shown), pdl,
                    ), config.num_warps, DEFAULT_STAGES,
                )
            )  # fmt: skip
        found.append(
            KernelSpec(
                f"combine, {tokens} tokens{shown}", _combine,
                {"sums_ptr": "*fp32", "log_sums_ptr": "*fp32", "cu_seqlens_ptr": "*i32", "seq_lens_ptr": "*i32",
                 "w_uv_ptr": weight, "uv_scale_ptr": factors, "out_ptr": "*bf16", "num_tokens": "i32",
                 "num_requests": "i32", "max_rows": "i32"},
                _combine_constants(config, w_uv, tokens, bool(shown), pdl), config.num_warps, DEFAULT_STAGES,
            )
        )  # fmt: skip
    for fp8, (name, index) in product((False, True), (("single", 0), ("several", 1))):
        tile = _tiles_of(config, fp8)[index]
        found.append(
            KernelSpec(
                f"attend, {name}{', FP8' if fp8 else ''}", _attend_splits,
                {"q_ptr": "*bf16", "pool_ptr": "*u8" if fp8 else "*bf16", "tables_ptr": "*i32",
                 "cu_seqlens_ptr": "*i32", "seq_lens_ptr": "*i32", "sums_ptr": "*fp32", "log_sums_ptr": "*fp32",
                 "num_requests": "i32", "table_stride": "i32", "max_rows": "i32", "scale_log2": "fp32"},
                _attend_constants(config, tile, num_heads, 256, rope, block_size, fp8, pdl),
                tile.num_warps, tile.num_stages,
            )
        )  # fmt: skip
    return found
