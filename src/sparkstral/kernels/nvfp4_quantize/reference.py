"""Plain PyTorch of kernels/nvfp4_quantize; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by code; bit 3 is the sign
# Between two magnitudes: from there on (or just beyond, where the lower code is even) the upper one is nearest.
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_WORD_ORDER = (6, 4, 2, 0, 7, 5, 3, 1)


def quantize(x: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Shapes as in the contract."""
    groups = x.float().unflatten(-1, (-1, 16))
    global_scale = global_scale.reshape(-1, 1).expand(len(x), 1)
    wanted = (global_scale * groups.abs().amax(dim=-1) / 6).clamp(max=448)
    scale = torch.where(groups.isfinite().all(dim=-1), wanted, torch.nan).to(torch.float8_e4m3fn)
    held = scale.float()
    scaled = groups * torch.where(held > 0, global_scale / held, 0)[..., None]
    size = scaled.abs()
    codes = torch.zeros_like(size, dtype=torch.uint8)
    for lower, middle in enumerate(_MIDDLES):
        codes += (size > middle) if lower % 2 == 0 else (size >= middle)
    codes |= (scaled < 0).to(torch.uint8) << 3
    even, odd = codes.flatten(-2).unflatten(-1, (-1, 2)).unbind(-1)
    return even | odd << 4, scale


def dequantize(packed: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    """Shapes as in the contract."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).long()
    values = torch.tensor(MAGNITUDES)[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
    factor = scale.float() / global_scale.reshape(-1, 1)
    return (values.unflatten(-1, (-1, 16)) * factor[..., None]).flatten(-2)


def to_word_order(packed: Tensor) -> Tensor:
    """[.., K/2] as stored -> the same codes in word order."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).unflatten(-1, (-1, 8))
    low, high = codes[..., _WORD_ORDER].unflatten(-1, (4, 2)).unbind(-1)
    return (low | high << 4).flatten(-2)


def from_word_order(packed: Tensor) -> Tensor:
    """The inverse of `to_word_order`."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).unflatten(-1, (-1, 8))
    back = torch.tensor(_WORD_ORDER).argsort()
    low, high = codes[..., back].unflatten(-1, (4, 2)).unbind(-1)
    return (low | high << 4).flatten(-2)
