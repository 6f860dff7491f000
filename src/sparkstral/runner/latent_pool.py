"""The latent cache on the device.

Owns its allocation; must not know who uses which block (kv_cache/) or how much memory there is (memory/).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkstral.kernels.latent_pool import fp8_slot_bytes
from sparkstral.model.config import KV_LORA_RANK, LATENT_WIDTH
from sparkstral.types import Precision


def allocate_latent_pool(
    num_layers: int,
    num_blocks: int,
    block_size_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    kv: Precision = "bf16",
) -> Tensor:
    """A pool for each layer (kernels/latent_pool): [num_layers, num_blocks, block_size, 320] of the model's `dtype`, or
    386 bytes in FP8. Zeros: what memory held before must not be read as a latent."""
    width, held = (LATENT_WIDTH, dtype) if kv == "bf16" else (fp8_slot_bytes(KV_LORA_RANK), torch.uint8)
    return torch.zeros(num_layers, num_blocks, block_size_tokens, width, device=device, dtype=held)
