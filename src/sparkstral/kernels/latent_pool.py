"""How the latents of a layer lie in its cache, in both forms.

A pool in the model's dtype is [num_blocks, block_size, W + P]: of each slot c_kv, then k_rope. A pool in FP8 is
[num_blocks, block_size, W + 2P + 2] uint8, as many bytes a slot, but a block holds them in three planes:

    codes  [block_size, W] float8_e4m3fn     c_kv over the slot's scale
    k_rope [block_size, P] bfloat16          as it is
    scale  [block_size] bfloat16             a power of two (kernels/fp8_quantize)

so that rows of each plane begin at multiples of 16 bytes where block_size is one of 8. k_rope keeps its 16 bits: in
FP8 it cost the demo 3 to 4 times the KL of c_kv (docs/decisions/016). Owns offsets and views; kernels/latent_write
fills pools, kernels/mla_decode and mla_prefill read them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROPE = 64  # P: one number for all models, so that W follows from the bytes of a slot


@dataclass(frozen=True, slots=True)
class Fp8Planes:
    """Views of a pool's memory: codes [B, S, W], k_rope [B, S, P], scale [B, S]."""

    codes: Tensor
    k_rope: Tensor
    scale: Tensor


def fp8_slot_bytes(width: int) -> int:
    return width + 2 * ROPE + 2


def is_fp8(pool: Tensor) -> bool:
    return pool.dtype == torch.uint8


def planes(pool: Tensor) -> Fp8Planes:
    """pool [B, S, W + 2P + 2] uint8, contiguous."""
    num_blocks, size, slot_bytes = pool.shape
    width = slot_bytes - 2 * ROPE - 2
    codes, k_rope, scale = pool.view(num_blocks, -1).split_with_sizes((size * width, size * 2 * ROPE, size * 2), dim=1)
    return Fp8Planes(
        torch.unflatten(codes.view(torch.float8_e4m3fn), 1, (size, width)),
        torch.unflatten(k_rope.view(torch.bfloat16), 1, (size, ROPE)),
        scale.view(torch.bfloat16),
    )


def read_blocks(pool: Tensor, block_ids: Tensor) -> Tensor:
    """The slots of these blocks, in their order: [len(block_ids) · S, W + P] of the pool's dtype, of FP8 float32."""
    blocks = pool.index_select(0, block_ids)
    if not is_fp8(pool):
        return blocks.flatten(0, 1)
    held = planes(blocks)
    c_kv = held.codes.float() * held.scale.float().unsqueeze(-1)
    return torch.cat((c_kv, held.k_rope.float()), dim=-1).flatten(0, 1)
