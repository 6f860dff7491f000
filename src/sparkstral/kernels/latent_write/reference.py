"""Plain PyTorch of kernels/latent_write; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor


def latent_write(pool: Tensor, slots: Tensor, c_kv: Tensor, k_rope: Tensor) -> None:
    """pool [num_blocks, block_size, W + P] gets c_kv [T, W] and k_rope [T, P] at slots [T]."""
    pool.view(-1, pool.shape[-1]).index_copy_(0, slots, torch.cat((c_kv, k_rope), dim=-1).to(pool.dtype))
