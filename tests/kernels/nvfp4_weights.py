"""NVFP4 weights as a checkpoint stores them, drawn so that products of unit activations stay near 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkstral.kernels import nvfp4_linear
from sparkstral.kernels.nvfp4_linear.packing import PackedWeight, pack


@dataclass(frozen=True)
class StoredWeight:
    """[..., N, K] in P parts of N/P rows with a global scale each."""

    packed: Tensor
    scale: Tensor
    global_scale: Tensor  # [..., P]

    def dense(self) -> Tensor:
        """[..., N, K] float64, decoded by the reference."""
        parts = self.global_scale.shape[-1]
        split = (*self.packed.shape[:-2], parts, self.packed.shape[-2] // parts, -1)
        decoded = nvfp4_linear.dequantize(
            self.packed.view(split), self.scale.view(split), self.global_scale, torch.float32
        )
        return decoded.flatten(-3, -2).double()

    def pack(self) -> PackedWeight:
        return pack(self.packed, self.scale, self.global_scale)


def draw(*shape: int, parts: int = 1, generator: torch.Generator) -> StoredWeight:
    """Any codes, scales from 2^-3 to 448 (a deviation of about 0.7 / sqrt(K)), global scales up to 3 times apart."""
    *lead, rows, columns = shape
    packed = torch.randint(0, 256, (*lead, rows, columns // 2), dtype=torch.uint8, generator=generator)
    scale = torch.exp2(torch.rand(*lead, rows, columns // 16, generator=generator) * 11.8 - 3)
    global_scale = (1 + 2 * torch.rand(*lead, parts, generator=generator)) * 400 * columns**0.5
    return StoredWeight(packed, scale.to(torch.float8_e4m3fn), global_scale)
