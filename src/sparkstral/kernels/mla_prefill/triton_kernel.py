"""Triton form of kernels/mla_prefill; the contract stands in the folder's `__init__`.

For each pass over the keys: gather their latents, expand them to keys and values with one matrix product (cuBLAS is
the fast form of that), attend with a causal flash-attention kernel. Keys are assembled
only in shared memory: the 64 lanes that heads have of their own come from the product, the 64 that they share from
the latents. Usually one pass serves the whole batch; a request that is longer than the scratch is walked in pieces,
and its running softmax waits in float32 between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels import latent_pool
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    queries: int  # of a program
    keys: int  # at a time
    num_warps: int
    num_stages: int


CONFIGS = {
    # wgmma wants 64 rows a warp group: two of them share each tile of keys. 64 keys are 32 KiB: three stages and the
    # queries' 32 KiB fit 227 KiB.
    (9, 0): PrefillConfig(queries=128, keys=64, num_warps=8, num_stages=3),
    # mma.sync, 99 KiB: 32 keys at a time, as 64 spill; 128 queries share each tile of keys.
    (12, 1): PrefillConfig(queries=128, keys=32, num_warps=8, num_stages=3),
}


@dataclass(frozen=True, slots=True)
class PrefillPass:
    """Keys that are expanded at once, and the requests that attend to them."""

    slots: Tensor  # [S] int64: where their latents are in the pool
    pieces: Tensor  # [requests, 6] int32: first query row, queries, seq_len, first of S, first key, end of keys
    tiles: Tensor  # [tiles, 2] int32: request of this pass, its first query of the tile
    is_first: bool  # of those that serve its requests
    is_last: bool


@dataclass(frozen=True, slots=True)
class PrefillWorkspace:
    latents: Tensor  # [max_keys, W + P]
    expanded: Tensor  # [max_keys, N·(64 + 128)]
    sums: Tensor  # [max_tokens, N, 128] float32: of requests that are walked in pieces
    peaks: Tensor  # [max_tokens, N] float32, base 2
    totals: Tensor  # [max_tokens, N] float32


def allocate_workspace(
    max_keys: int, max_tokens: int, num_heads: int, dtype: torch.dtype, device: torch.device
) -> PrefillWorkspace:
    """For passes of up to `max_keys` keys, 12.9 KB each, and batches of `max_tokens` tokens, 16.6 KB each, with 32
    heads."""

    def empty(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, dtype=of, device=device)

    return PrefillWorkspace(
        latents=empty(max_keys, 320, of=dtype),
        expanded=empty(max_keys, num_heads * 192, of=dtype),
        sums=empty(max_tokens, num_heads, 128),
        peaks=empty(max_tokens, num_heads),
        totals=empty(max_tokens, num_heads),
    )


def plan_passes(
    block_tables: Tensor,
    cu_seqlens_q: Sequence[int],
    seq_lens: Sequence[int],
    *,
    block_size: int,
    max_keys: int,
    config: PrefillConfig,
) -> tuple[PrefillPass, ...]:
    """How a batch is walked, the same in all layers. One pass if all keys fit `max_keys`; else each request has its
    own, in pieces of `max_keys` keys."""
    spans = [
        (begin, end - begin, seq_len) for (begin, end), seq_len in zip(pairwise(cu_seqlens_q), seq_lens, strict=True)
    ]
    if sum(seq_lens) <= max_keys:
        whole = [(request, 0, seq_len) for request, seq_len in enumerate(seq_lens)]
        return (_make_pass(whole, spans, block_tables, block_size, config, is_first=True, is_last=True),)
    passes = []
    for request, seq_len in enumerate(seq_lens):
        for first in range(0, seq_len, max_keys):
            end = min(first + max_keys, seq_len)
            piece = [(request, first, end)]
            passes.append(
                _make_pass(piece, spans, block_tables, block_size, config, is_first=first == 0, is_last=end == seq_len)
            )
    return tuple(passes)


def _make_pass(
    parts: list[tuple[int, int, int]],
    spans: list[tuple[int, int, int]],
    block_tables: Tensor,
    block_size: int,
    config: PrefillConfig,
    *,
    is_first: bool,
    is_last: bool,
) -> PrefillPass:
    """parts: (request, first key, end of its keys)."""
    device = block_tables.device
    within = torch.arange(block_size, device=device)
    slots, pieces, tiles = [], [], []
    num_keys = 0
    for i, (request, first, end) in enumerate(parts):
        blocks = block_tables[request, first // block_size : -(-end // block_size)].long()
        skipped = first % block_size
        slots.append((blocks[:, None] * block_size + within).flatten()[skipped : skipped + end - first])
        begin, num_queries, seq_len = spans[request]
        pieces.append((begin, num_queries, seq_len, num_keys, first, end))
        num_keys += end - first
        # Most keys first: the last programs to start are then the shortest.
        tiles += [(seq_len - num_queries + query, i, query) for query in range(0, num_queries, config.queries)]
    tiles.sort(key=lambda tile: -tile[0])
    return PrefillPass(
        slots=torch.cat(slots),
        pieces=torch.tensor(pieces, dtype=torch.int32).to(device),
        tiles=torch.tensor([tile[1:] for tile in tiles], dtype=torch.int32).to(device),
        is_first=is_first,
        is_last=is_last,
    )


@triton.jit
def _gather_fp8(
    pool_ptr, slots_ptr, out_ptr, LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_SIZE: tl.constexpr
):  # fmt: skip
    """One key: out gets its latent, exact in bfloat16, and its rotated key."""
    key = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + key)
    block_ptr = pool_ptr + slot // BLOCK_SIZE * (BLOCK_SIZE * (LATENT + 2 * ROPE + 2))
    offset = slot % BLOCK_SIZE
    lane, pair = tl.arange(0, LATENT), tl.arange(0, ROPE)
    codes = tl.load(block_ptr.to(tl.pointer_type(tl.float8e4nv)) + offset * LATENT + lane)
    k_rope = tl.load((block_ptr + BLOCK_SIZE * LATENT).to(tl.pointer_type(tl.bfloat16)) + offset * ROPE + pair)
    scale = tl.load((block_ptr + BLOCK_SIZE * (LATENT + 2 * ROPE)).to(tl.pointer_type(tl.bfloat16)) + offset)
    out_ptr += key * (LATENT + ROPE)
    tl.store(out_ptr + lane, (codes.to(tl.float32) * scale.to(tl.float32)).to(out_ptr.dtype.element_ty))
    tl.store(out_ptr + LATENT + pair, k_rope.to(out_ptr.dtype.element_ty))


def gather(pool: Tensor, slots: Tensor, out: Tensor) -> None:
    """out [S, W + P] gets the latents at these slots of a pool of either form."""
    if not latent_pool.is_fp8(pool):
        torch.index_select(pool.view(-1, pool.shape[-1]), 0, slots, out=out)
        return
    _gather_fp8[(len(slots),)](
        pool, slots, out, **_gather_constants(out.shape[1] - latent_pool.ROPE, pool.shape[1]), num_warps=1
    )


def _gather_constants(width: int, block_size: int) -> dict[str, int]:
    return {"LATENT": width, "ROPE": latent_pool.ROPE, "BLOCK_SIZE": block_size}


@triton.jit
def _walk(
    q, last_seen, peak, total, sums, kv_ptr, latent_ptr, first, end, scale_log2,
    KV_STRIDE: tl.constexpr, LATENT_STRIDE: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr,
    VALUE: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Attend to the keys [first, end) of the scratch; MASKED where some are not for all queries, or past the end.

    A key's lanes come from two places, 16 bytes a request from one of them: its own from the expansion, the shared
    ones from the latent."""
    lane = tl.arange(0, NOPE + ROPE)
    value = tl.arange(0, VALUE)
    for start in range(first, end, KEYS):
        key = (start + tl.arange(0, KEYS))[:, None]
        own, shared = (
            kv_ptr + key * KV_STRIDE + lane[None, :],
            latent_ptr + key * LATENT_STRIDE + (lane - NOPE)[None, :],
        )
        k_at = tl.where((lane < NOPE)[None, :], own, shared)
        v_at = kv_ptr + key * KV_STRIDE + (NOPE + value)[None, :]
        if MASKED:
            k = tl.load(k_at, mask=key < end, other=0.0)
            v = tl.load(v_at, mask=key < end, other=0.0)
        else:
            k = tl.load(k_at)
            v = tl.load(v_at)
        scores = tl.dot(q, tl.trans(k))
        if MASKED:
            scores = tl.where(tl.trans(key) <= last_seen[:, None], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1) * scale_log2)
        # A query that has seen no key yet keeps -inf as its peak.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
        weights = tl.exp2(scores * scale_log2 - shift[:, None])
        fade = tl.exp2(peak - shift)
        total = total * fade + tl.sum(weights, axis=1)
        sums = tl.dot(weights.to(v.dtype), v, sums * fade[:, None])
        peak = new_peak
    return peak, total, sums


@triton.jit
def _attend(
    q_ptr, kv_ptr, latent_ptr, pieces_ptr, tiles_ptr, out_ptr, sums_ptr, peaks_ptr, totals_ptr, scale_log2,
    NUM_HEADS: tl.constexpr, LATENT: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    piece = pieces_ptr + tl.load(tiles_ptr + tl.program_id(0) * 2) * 6
    query = tl.load(tiles_ptr + tl.program_id(0) * 2 + 1) + tl.arange(0, QUERIES)
    num_queries, seq_len = tl.load(piece + 1), tl.load(piece + 2)
    scratch_first, first_key, end_key = tl.load(piece + 3), tl.load(piece + 4), tl.load(piece + 5)
    is_query = query < num_queries
    lane, value = tl.arange(0, NOPE + ROPE), tl.arange(0, VALUE)
    row = (tl.load(piece) + query).to(tl.int64) * NUM_HEADS + head
    q_at = q_ptr + row[:, None] * (NOPE + ROPE) + lane[None, :]
    q = tl.load(q_at, mask=is_query[:, None], other=0.0)
    state = row[:, None] * VALUE + value[None, :]
    if FIRST:
        peak = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        sums = tl.zeros([QUERIES, VALUE], tl.float32)
    else:
        peak = tl.load(peaks_ptr + row, mask=is_query, other=0.0)
        total = tl.load(totals_ptr + row, mask=is_query, other=0.0)
        sums = tl.load(sums_ptr + state, mask=is_query[:, None], other=0.0)
    # Positions and keys from here on are counted from the piece's first key.
    last_seen = tl.minimum(seq_len - num_queries + query, end_key - 1) - first_key
    end = tl.minimum(
        end_key - first_key, seq_len - num_queries - first_key + tl.minimum(tl.max(query) + 1, num_queries)
    )
    seen_by_all = tl.maximum(tl.minimum(tl.min(last_seen) + 1, end), 0) // KEYS * KEYS
    kv_ptr += scratch_first.to(tl.int64) * NUM_HEADS * (NOPE + VALUE) + head * (NOPE + VALUE)
    latent_ptr += scratch_first.to(tl.int64) * (LATENT + ROPE) + LATENT
    peak, total, sums = _walk(
        q, last_seen, peak, total, sums, kv_ptr, latent_ptr, 0, seen_by_all, scale_log2,
        NUM_HEADS * (NOPE + VALUE), LATENT + ROPE, NOPE, ROPE, VALUE, KEYS, False,
    )  # fmt: skip
    peak, total, sums = _walk(
        q, last_seen, peak, total, sums, kv_ptr, latent_ptr, seen_by_all, end, scale_log2,
        NUM_HEADS * (NOPE + VALUE), LATENT + ROPE, NOPE, ROPE, VALUE, KEYS, True,
    )  # fmt: skip
    if LAST:
        out = (sums / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + state, out, mask=is_query[:, None])
    else:
        tl.store(peaks_ptr + row, peak, mask=is_query)
        tl.store(totals_ptr + row, total, mask=is_query)
        tl.store(sums_ptr + state, sums, mask=is_query[:, None])


def mla_prefill(
    q: Tensor,
    pool: Tensor,
    passes: Sequence[PrefillPass],
    w_kv_b: Tensor,
    softmax_scale: float,
    *,
    workspace: PrefillWorkspace,
    config: PrefillConfig,
    out: Tensor | None = None,
) -> Tensor:
    """q [T, N, 64 + P], w_kv_b [N·(64 + 128), W]: each head's k_nope rows, then its v rows -> [T, N, 128], or into
    `out` (contiguous)."""
    num_tokens, num_heads, _ = q.shape
    width = w_kv_b.shape[1]
    value = len(w_kv_b) // num_heads - 64
    if out is None:
        out = q.new_empty(num_tokens, num_heads, value)
    rope = workspace.latents.shape[1] - width
    for part in passes:
        latents = workspace.latents[: len(part.slots)]
        expanded = workspace.expanded[: len(part.slots)]
        gather(pool, part.slots, latents)
        torch.mm(latents[:, :width], w_kv_b.T, out=expanded)
        _attend[(len(part.tiles), num_heads)](
            q, expanded, latents, part.pieces, part.tiles, out, workspace.sums, workspace.peaks, workspace.totals,
            softmax_scale * math.log2(math.e),
            **_constants(config, num_heads, width, rope, value, part.is_first, part.is_last),
            num_warps=config.num_warps, num_stages=config.num_stages,
        )  # fmt: skip
    return out


def _constants(
    config: PrefillConfig, num_heads: int, width: int, rope: int, value: int, is_first: bool, is_last: bool
) -> dict[str, int | bool]:
    return {
        "NUM_HEADS": num_heads, "LATENT": width, "NOPE": 64, "ROPE": rope, "VALUE": value,
        "QUERIES": config.queries, "KEYS": config.keys, "FIRST": is_first, "LAST": is_last,
    }  # fmt: skip


def specs(config: PrefillConfig) -> list[KernelSpec]:
    """The real model's heads: requests of one pass, and the first, middle and last of several; and what gathers latents
    of a cache in FP8."""
    types = {
        "q_ptr": "*bf16", "kv_ptr": "*bf16", "latent_ptr": "*bf16", "pieces_ptr": "*i32", "tiles_ptr": "*i32",
        "out_ptr": "*bf16", "sums_ptr": "*fp32", "peaks_ptr": "*fp32", "totals_ptr": "*fp32", "scale_log2": "fp32",
    }  # fmt: skip
    gathered = {"pool_ptr": "*u8", "slots_ptr": "*i64", "out_ptr": "*bf16"}
    return [
        KernelSpec("gather, FP8", _gather_fp8, gathered, _gather_constants(256, 64), 1, DEFAULT_STAGES),
        *(KernelSpec(
            name, _attend, types, _constants(config, 32, 256, 64, 128, first, last), config.num_warps, config.num_stages
        )
        for name, first, last in (
            ("one pass", True, True), ("first", True, False), ("middle", False, False), ("last", False, True)
        )),
    ]  # fmt: skip
