"""Triton form of kernels/rope for whole queries: rotated and scaled in place, one program a token.

Decode steps do not need it (kernels/mla_decode rotates where it absorbs); prompts do, before kernels/mla_prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec


@dataclass(frozen=True, slots=True)
class RopeConfig:
    num_warps: int


# 8 KiB a token, read and written once: 16 elements of each half a thread.
CONFIGS = {(9, 0): RopeConfig(num_warps=4), (12, 1): RopeConfig(num_warps=4)}


@triton.jit
def _turn_queries(
    q_ptr, rotation_ptr, query_scale_ptr,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)
    nope = tl.arange(0, NOPE)
    lane = tl.arange(0, ROPE)
    is_head = (head < NUM_HEADS)[:, None]
    wait_for_inputs(PDL)
    dtype = q_ptr.dtype.element_ty
    scale = tl.load(query_scale_ptr + token).to(tl.float32)
    head_ptr = q_ptr + (token * NUM_HEADS + head)[:, None] * (NOPE + ROPE)
    q_nope = tl.load(head_ptr + nope[None, :], mask=is_head, other=0.0).to(tl.float32)
    tl.store(head_ptr + nope[None, :], (q_nope * scale).to(dtype), mask=is_head)
    q_rope = tl.load(head_ptr + NOPE + lane[None, :], mask=is_head, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(q_rope, [HEADS, ROPE // 2, 2]))
    rotation = tl.load(rotation_ptr + token * ROPE + lane)
    cos, sin = tl.split(tl.reshape(rotation, [ROPE // 2, 2]))
    turned_even = (even * cos[None, :] - odd * sin[None, :]).to(dtype).to(tl.float32)
    turned_odd = (even * sin[None, :] + odd * cos[None, :]).to(dtype).to(tl.float32)
    turned = tl.reshape(tl.join(turned_even, turned_odd), [HEADS, ROPE])
    tl.store(head_ptr + NOPE + lane[None, :], (turned * scale).to(dtype), mask=is_head)


def turn_queries(q: Tensor, rotation: Tensor, query_scale: Tensor, *, config: RopeConfig, pdl: bool) -> None:
    """q [T, N, 64 + P] contiguous, changed in place; rotation [T, P/2] complex64, query_scale [T]."""
    num_tokens, num_heads, width = q.shape
    rope = 2 * rotation.shape[1]
    _turn_queries[(num_tokens,)](
        q, torch.view_as_real(rotation), query_scale,
        **_constants(num_heads, width - rope, rope, pdl), num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip


def _constants(num_heads: int, nope: int, rope: int, pdl: bool) -> dict[str, int | bool]:
    heads = triton.next_power_of_2(num_heads)
    return {"NUM_HEADS": num_heads, "HEADS": heads, "NOPE": nope, "ROPE": rope, "PDL": pdl}


def specs(config: RopeConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The real model's 32 heads."""
    types = {"q_ptr": "*bf16", "rotation_ptr": "*fp32", "query_scale_ptr": "*bf16"}
    return [KernelSpec("queries", _turn_queries, types, _constants(32, 64, 64, pdl), config.num_warps, DEFAULT_STAGES)]
