"""Triton form of kernels/latent_write, with what stands before it: what the first projection gave is summed,
normalised, rotated and stored. Two programs a token: its query's latent, and its entry of the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels import latent_pool
from sparkstral.kernels.e4m3 import e4m3_codes, row_scale
from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec
from sparkstral.kernels.parts import sum_parts


@dataclass(frozen=True, slots=True)
class LatentWriteConfig:
    num_warps: int


# 1,344 numbers a token: latency alone. 4 warps read 1,024 of them in one request a part.
CONFIGS = {(9, 0): LatentWriteConfig(num_warps=4), (12, 1): LatentWriteConfig(num_warps=4)}


@triton.jit
def _normalise(x, weight_ptr, lane, inside, eps, dtype: tl.constexpr, WIDTH: tl.constexpr):
    """kernels/rms_norm of one row -> dtype."""
    weight = tl.load(weight_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    normed = (x * tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + eps)).to(dtype)
    return (normed.to(tl.float32) * weight).to(dtype)


@triton.jit(do_not_specialize=["num_tokens"])
def _write_latents(
    parts_ptr, q_norm_ptr, kv_norm_ptr, rotation_ptr, slots_ptr, q_ptr, pool_ptr, num_tokens, eps,
    QUERY: tl.constexpr, QUERY_BLOCK: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    PARTS: tl.constexpr, FP8_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    token = tl.program_id(0)
    part_stride = num_tokens * (QUERY + LATENT + ROPE)
    dtype = q_ptr.dtype.element_ty
    row_ptr = parts_ptr + token * (QUERY + LATENT + ROPE)
    wait_for_inputs(PDL)
    if tl.program_id(1) == 0:
        lane = tl.arange(0, QUERY_BLOCK)
        inside = lane < QUERY
        q = sum_parts(row_ptr + lane, part_stride, inside, dtype, PARTS)
        tl.store(q_ptr + token * QUERY + lane, _normalise(q, q_norm_ptr, lane, inside, eps, dtype, QUERY), mask=inside)
    else:
        slot = tl.load(slots_ptr + token)
        if slot >= 0:
            lane = tl.arange(0, LATENT)
            pair = tl.arange(0, ROPE // 2)
            is_lane, is_pair = lane < LATENT, pair < ROPE // 2  # all of them
            c_kv = sum_parts(row_ptr + QUERY + lane, part_stride, is_lane, dtype, PARTS)
            c_kv = _normalise(c_kv, kv_norm_ptr, lane, is_lane, eps, dtype, LATENT)
            if FP8_BLOCK > 0:
                block_ptr = pool_ptr + slot.to(tl.int64) // FP8_BLOCK * (FP8_BLOCK * (LATENT + 2 * ROPE + 2))
                offset = slot % FP8_BLOCK
                wide = c_kv.to(tl.float32)
                scale = row_scale(wide)
                tl.store(block_ptr + offset * LATENT + lane, e4m3_codes(wide, scale))
                scale_ptr = (block_ptr + FP8_BLOCK * (LATENT + 2 * ROPE)).to(tl.pointer_type(tl.bfloat16))
                tl.store(scale_ptr + offset, scale.to(tl.bfloat16))
                turned_ptr = (block_ptr + FP8_BLOCK * LATENT).to(tl.pointer_type(tl.bfloat16)) + offset * ROPE
            else:
                entry_ptr = pool_ptr + slot.to(tl.int64) * (LATENT + ROPE)
                tl.store(entry_ptr + lane, c_kv.to(pool_ptr.dtype.element_ty))
                turned_ptr = entry_ptr + LATENT
            rope_ptr = row_ptr + QUERY + LATENT + 2 * pair
            even = sum_parts(rope_ptr, part_stride, is_pair, dtype, PARTS)
            odd = sum_parts(rope_ptr + 1, part_stride, is_pair, dtype, PARTS)
            cos = tl.load(rotation_ptr + (token * (ROPE // 2) + pair) * 2)
            sin = tl.load(rotation_ptr + (token * (ROPE // 2) + pair) * 2 + 1)
            turned_even, turned_odd = (even * cos - odd * sin).to(dtype), (even * sin + odd * cos).to(dtype)
            tl.store(turned_ptr + 2 * pair, turned_even.to(turned_ptr.dtype.element_ty))
            tl.store(turned_ptr + 2 * pair + 1, turned_odd.to(turned_ptr.dtype.element_ty))


def write_latents(
    parts: Tensor,
    q_a_norm: Tensor,
    kv_a_norm: Tensor,
    rotation: Tensor,
    slots: Tensor,
    eps: float,
    pool: Tensor,
    *,
    config: LatentWriteConfig,
    pdl: bool,
) -> Tensor:
    """parts [S, T, Q + W + P], q_a_norm [Q], kv_a_norm [W], rotation [T, P/2] complex64, slots [T] -> [T, Q]."""
    num_parts, num_tokens, _ = parts.shape
    q = torch.empty(num_tokens, len(q_a_norm), dtype=q_a_norm.dtype, device=parts.device)
    fp8_block = pool.shape[1] if latent_pool.is_fp8(pool) else 0
    constants = _constants(len(q_a_norm), len(kv_a_norm), 2 * rotation.shape[1], num_parts, fp8_block, pdl)
    _write_latents[(num_tokens, 2)](
        parts, q_a_norm, kv_a_norm, torch.view_as_real(rotation), slots, q, pool, num_tokens, eps,
        **constants, num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip
    return q


def _constants(
    query: int, latent: int, rope: int, num_parts: int, fp8_block: int, pdl: bool
) -> dict[str, int | bool]:
    """fp8_block: slots of a block of a pool in FP8, 0 for another."""
    return {
        "QUERY": query, "QUERY_BLOCK": triton.next_power_of_2(query), "LATENT": latent, "ROPE": rope,
        "PARTS": num_parts, "FP8_BLOCK": fp8_block, "PDL": pdl,
    }  # fmt: skip


def specs(config: LatentWriteConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The real model's widths, after cuBLAS (bfloat16) and after products in 1, 4 and 8 float32 parts, into pools of
    both forms."""
    return [
        KernelSpec(
            f"{parts} {dtype} parts{', FP8' if fp8_block else ''}", _write_latents,
            {"parts_ptr": f"*{dtype}", "q_norm_ptr": "*bf16", "kv_norm_ptr": "*bf16", "rotation_ptr": "*fp32",
             "slots_ptr": "*i64", "q_ptr": "*bf16", "pool_ptr": "*u8" if fp8_block else "*bf16", "num_tokens": "i32",
             "eps": "fp32"},
            _constants(1024, 256, 64, parts, fp8_block, pdl), config.num_warps, DEFAULT_STAGES,
        )
        for parts, dtype in ((1, "bf16"), (1, "fp32"), (4, "fp32"), (8, "fp32"))
        for fp8_block in (0, 64)
    ]  # fmt: skip
