"""Plain PyTorch of kernels/latent_write; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkstral.kernels import latent_pool
from sparkstral.kernels.fp8_quantize import quantize


def latent_write(pool: Tensor, slots: Tensor, c_kv: Tensor, k_rope: Tensor) -> None:
    """pool (kernels/latent_pool) gets c_kv [T, W] and k_rope [T, P] at slots [T]."""
    if latent_pool.is_fp8(pool):
        block, offset = slots // pool.shape[1], slots % pool.shape[1]
        held, rows = latent_pool.planes(pool), quantize(c_kv)
        held.codes.view(torch.uint8)[block, offset] = rows.codes.view(torch.uint8)
        held.k_rope[block, offset] = k_rope.to(torch.bfloat16)
        held.scale[block, offset] = rows.scale.to(torch.bfloat16)
        return
    pool.view(-1, pool.shape[-1]).index_copy_(0, slots, torch.cat((c_kv, k_rope), dim=-1).to(pool.dtype))
