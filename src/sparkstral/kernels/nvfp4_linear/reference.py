"""Plain PyTorch of kernels/nvfp4_linear; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = _MAGNITUDES + tuple(-value for value in _MAGNITUDES)  # by code
_GROUP_SIZE = 16  # columns that share a scale


def dequantize(packed: Tensor, scale: Tensor, global_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """packed [..., N, K/2], scale [..., N, K/16], global_scale [...] -> [..., N, K] of `dtype`."""
    codes = torch.stack((packed & 0x0F, packed >> 4), dim=-1)
    values = torch.tensor(_E2M1, device=packed.device)[codes.int()].view(*scale.shape, _GROUP_SIZE)
    factor = scale.float() / global_scale[..., None, None]
    return torch.mul(values, factor.unsqueeze(-1)).flatten(-2).to(dtype)


def nvfp4_linear(x: Tensor, packed: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    """x [..., K], a weight of N rows -> [..., N] of x's dtype."""
    return F.linear(x, dequantize(packed, scale, global_scale, x.dtype))
