"""Triton form of kernels/vision_attention; the contract stands in the folder's `__init__`.

Two launches a layer: one turns queries and keys where they lie, one attends: a program has a tile of one image's
queries and walks that image's keys with the running softmax in registers. At 12,100 patches the products of a layer are
0.6 TFLOP and its queries, keys and values 75 MB: bound by the matrix units.
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

from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec

HEAD_DIM = 64


@dataclass(frozen=True, slots=True)
class VisionAttentionConfig:
    queries: int  # of a program
    keys: int  # at a time
    num_warps: int
    num_stages: int
    turn_num_warps: int = 4


CONFIGS = {
    # wgmma wants 64 rows a warp group: two share each tile of keys. Keys and values of a stage are 32 KiB.
    (9, 0): VisionAttentionConfig(queries=128, keys=128, num_warps=8, num_stages=3),
    # mma.sync, 99 KiB: a stage is 16 KiB, the queries are 16.
    (12, 1): VisionAttentionConfig(queries=128, keys=64, num_warps=8, num_stages=3),
}


def plan_tiles(cu_seqlens: Sequence[int], config: VisionAttentionConfig, device: torch.device) -> Tensor:
    """[P, 3] int32: a program's first query row, and where its image begins and ends. The largest images come first, so
    that the last programs to start are the shortest."""
    spans = sorted(pairwise(cu_seqlens), key=lambda span: span[0] - span[1])
    tiles = [(query, begin, end) for begin, end in spans for query in range(begin, end, config.queries)]
    return torch.tensor(tiles, dtype=torch.int32).to(device)


@triton.jit
def _turn(
    qkv_ptr, rotation_ptr,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)
    lane = tl.arange(0, HEAD_DIM)
    dtype = qkv_ptr.dtype.element_ty
    at = qkv_ptr + (token * 3 + tl.program_id(1)) * NUM_HEADS * HEAD_DIM + head[:, None] * HEAD_DIM + lane[None, :]
    is_head = (head < NUM_HEADS)[:, None]
    x = tl.load(at, mask=is_head, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, [HEADS, HEAD_DIM // 2, 2]))
    cos, sin = tl.split(tl.reshape(tl.load(rotation_ptr + token * HEAD_DIM + lane), [HEAD_DIM // 2, 2]))
    turned = tl.join(even * cos[None, :] - odd * sin[None, :], even * sin[None, :] + odd * cos[None, :])
    tl.store(at, tl.reshape(turned, [HEADS, HEAD_DIM]).to(dtype), mask=is_head)


@triton.jit
def _walk(
    q, peak, total, sums, k_ptr, v_ptr, first, end, scale_log2,
    STRIDE: tl.constexpr, HEAD_DIM: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Attend to the keys [first, end), rows of k_ptr and v_ptr; MASKED where the last tile reaches past the end."""
    lane = tl.arange(0, HEAD_DIM)
    for start in range(first, end, KEYS):
        key = start + tl.arange(0, KEYS)
        at = key.to(tl.int64)[:, None] * STRIDE + lane[None, :]
        if MASKED:
            k = tl.load(k_ptr + at, mask=(key < end)[:, None], other=0.0)
            v = tl.load(v_ptr + at, mask=(key < end)[:, None], other=0.0)
        else:
            k = tl.load(k_ptr + at)
            v = tl.load(v_ptr + at)
        scores = tl.dot(q, tl.trans(k)) * scale_log2
        if MASKED:
            scores = tl.where((key < end)[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_peak[:, None])
        fade = tl.exp2(peak - new_peak)
        total = total * fade + tl.sum(weights, axis=1)
        sums = tl.dot(weights.to(v.dtype), v, sums * fade[:, None])
        peak = new_peak
    return peak, total, sums


@triton.jit
def _attend(
    qkv_ptr, tiles_ptr, out_ptr, scale_log2,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    tile = tiles_ptr + tl.program_id(0) * 3
    head = tl.program_id(1)
    row = tl.load(tile) + tl.arange(0, QUERIES)
    begin, end = tl.load(tile + 1), tl.load(tile + 2)
    lane = tl.arange(0, HEAD_DIM)
    stride: tl.constexpr = 3 * NUM_HEADS * HEAD_DIM
    is_query = (row < end)[:, None]
    q_ptr = qkv_ptr + head * HEAD_DIM
    q = tl.load(q_ptr + row.to(tl.int64)[:, None] * stride + lane[None, :], mask=is_query, other=0.0)
    k_ptr = q_ptr + NUM_HEADS * HEAD_DIM
    v_ptr = k_ptr + NUM_HEADS * HEAD_DIM
    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, HEAD_DIM], tl.float32)
    whole = begin + (end - begin) // KEYS * KEYS
    peak, total, sums = _walk(
        q, peak, total, sums, k_ptr, v_ptr, begin, whole, scale_log2, stride, HEAD_DIM, KEYS, False
    )
    peak, total, sums = _walk(q, peak, total, sums, k_ptr, v_ptr, whole, end, scale_log2, stride, HEAD_DIM, KEYS, True)
    out = (sums / total[:, None]).to(out_ptr.dtype.element_ty)
    out_at = (row.to(tl.int64)[:, None] * NUM_HEADS + head) * HEAD_DIM + lane[None, :]
    tl.store(out_ptr + out_at, out, mask=is_query)


def vision_attention(qkv: Tensor, rotation: Tensor, tiles: Tensor, *, config: VisionAttentionConfig) -> Tensor:
    """qkv [T, 3, N, 64] contiguous, whose queries and keys are turned in place; rotation [T, 32] -> [T, N * 64]."""
    num_tokens, _, num_heads, width = qkv.shape
    _turn[(num_tokens, 2)](
        qkv, torch.view_as_real(rotation), **_turn_constants(num_heads), num_warps=config.turn_num_warps
    )
    out = qkv.new_empty(num_tokens, num_heads * width)
    _attend[(len(tiles), num_heads)](
        qkv, tiles, out, width**-0.5 * math.log2(math.e),
        **_attend_constants(config, num_heads), num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return out


def _turn_constants(num_heads: int) -> dict[str, int | bool]:
    return {"NUM_HEADS": num_heads, "HEADS": triton.next_power_of_2(num_heads), "HEAD_DIM": HEAD_DIM}


def _attend_constants(config: VisionAttentionConfig, num_heads: int) -> dict[str, int | bool]:
    return {"NUM_HEADS": num_heads, "HEAD_DIM": HEAD_DIM, "QUERIES": config.queries, "KEYS": config.keys}


def specs(config: VisionAttentionConfig) -> list[KernelSpec]:
    """The real model's 16 heads."""
    turn = {"qkv_ptr": "*bf16", "rotation_ptr": "*fp32"}
    attend = {"qkv_ptr": "*bf16", "tiles_ptr": "*i32", "out_ptr": "*bf16", "scale_log2": "fp32"}
    return [
        KernelSpec("turn", _turn, turn, _turn_constants(16), config.turn_num_warps, DEFAULT_STAGES),
        KernelSpec("attend", _attend, attend, _attend_constants(config, 16), config.num_warps, config.num_stages),
    ]
