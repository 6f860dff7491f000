"""The content of single blocks, between the device and bytes.

Owns the form of these bytes: the block of all layers, as the pool has it.
Must not know what they are for.
"""

from __future__ import annotations

import torch
from torch import Tensor


class BlockCopier:
    """`pool` is [num_layers, num_blocks, block_size, width], of either form. Copies wait for the work that was
    launched before."""

    def __init__(self, pool: Tensor) -> None:
        self._pool = pool
        self.num_bytes = pool[:, 0].numel() * pool.element_size()

    def read(self, block_id: int) -> bytes:
        block = self._pool[:, block_id].contiguous().flatten().view(torch.uint8)
        return block.cpu().numpy().tobytes()

    def write(self, block_id: int, content: bytes) -> None:
        """`content` has `num_bytes`."""
        target = self._pool[:, block_id]
        block = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(self._pool.dtype)
        target.copy_(block.view(target.shape))
