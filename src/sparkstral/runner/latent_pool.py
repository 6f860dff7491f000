"""The latent cache on the device.

Owns its allocation; must not know who uses which block (kv_cache/) or how much memory there is (memory/).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkstral.model.config import LATENT_WIDTH


def allocate_latent_pool(
    num_layers: int, num_blocks: int, block_size_tokens: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """[num_layers, num_blocks, block_size, 320], zeros: what memory held before must not be read as a latent."""
    return torch.zeros(num_layers, num_blocks, block_size_tokens, LATENT_WIDTH, device=device, dtype=dtype)
