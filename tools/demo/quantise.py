"""NVFP4 as compressed-tensors writes it: rounding, packing and decoding of expert matrices.

Owns the arithmetic of the format; must not know names or files. Source: docs/model.md, NVFP4 decoding:
W[n, k] = e2m1(code) * e4m3(scale[n, k / 16]) / global_scale, global_scale = 448 * 6 / amax(W), even columns
low nibble.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Midpoints between neighbouring values; a tie goes to the value with the even code, which `right` says for
# each.
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_TIE_GOES_UP = (False, True, False, True, False, True, False)
_SMALLEST_SCALE = (
    0.125  # stands in for a block scale that e4m3 rounds to 0 (compressed-tensors takes e4m3's epsilon)
)


@dataclass(frozen=True, slots=True)
class Nvfp4Matrix:
    """A stack of M matrices: codes [M, N, K] uint8 (sign in bit 3), scale [M, N, K / 16] float8_e4m3fn,
    global_scale [M] float32, a divisor."""

    codes: Tensor
    scale: Tensor
    global_scale: Tensor

    def packed(self) -> Tensor:
        """[M, N, K / 2] uint8, the even column in the low nibble."""
        return self.codes[..., 0::2] | (self.codes[..., 1::2] << 4)

    def dense(self) -> Tensor:
        """[M, N, K] float32: the values that the codes stand for."""
        values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=self.codes.device)
        magnitude = values[(self.codes & 7).long()]
        signed = torch.where(self.codes >= 8, -magnitude, magnitude)
        scale = self.scale.float() / self.global_scale[:, None, None]
        return (signed.unflatten(-1, (-1, BLOCK)) * scale[..., None]).flatten(-2)


def _scales(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Block scales (float8_e4m3fn [M, N, K / 16]) and global scales (float32 [M]) of a stack [M, N, K]
    float32."""
    blocks = weight.unflatten(-1, (-1, BLOCK)).abs().amax(-1)
    amax = blocks.amax((-2, -1)).clamp_min(torch.finfo(torch.float32).tiny)
    global_scale = E4M3_MAX * E2M1_MAX / amax
    scale = (global_scale[:, None, None] * (blocks / E2M1_MAX)).clamp_max(E4M3_MAX).to(torch.float8_e4m3fn)
    floor = torch.tensor(_SMALLEST_SCALE, device=weight.device).to(torch.float8_e4m3fn)
    return torch.where(scale.float() == 0, floor.float(), scale.float()).to(torch.float8_e4m3fn), global_scale


def quantise(weight: Tensor) -> Nvfp4Matrix:
    """Round a stack [M, N, K] of float32 matrices to NVFP4; each matrix has its own global scale."""
    scale, global_scale = _scales(weight)
    divisor = (scale.float() / global_scale[:, None, None])[..., None]
    scaled = (weight.unflatten(-1, (-1, BLOCK)) / divisor).clamp(-E2M1_MAX, E2M1_MAX).flatten(-2)
    magnitude = scaled.abs()
    code = torch.zeros_like(magnitude, dtype=torch.uint8)
    for midpoint, tie_goes_up in zip(_MIDPOINTS, _TIE_GOES_UP, strict=True):
        code += (magnitude >= midpoint if tie_goes_up else magnitude > midpoint).to(torch.uint8)
    return Nvfp4Matrix(code | (scaled < 0).to(torch.uint8) << 3, scale, global_scale)


def round_to_nvfp4(weight: Tensor) -> Tensor:
    """The values that `quantise` stores for a stack [M, N, K] of float32 matrices, as float32."""
    return quantise(weight).dense()


def unpack(packed: Tensor) -> Tensor:
    """Codes [..., K] uint8 of packed bytes [..., K / 2]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
