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
    groups = x.float().view(*x.shape[:-1], -1, 16)
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
    return _bytes(codes.flatten(-2)), scale


def dequantize(packed: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    """Shapes as in the contract."""
    codes = _codes(packed).long()
    values = torch.tensor(MAGNITUDES, device=packed.device)[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
    factor = (scale.float() / global_scale.reshape(-1, 1)).repeat_interleave(16, dim=-1)
    return values * factor


def to_word_order(packed: Tensor) -> Tensor:
    """[.., K/2] as stored -> the same codes in word order."""
    return _in_order(packed, torch.tensor(_WORD_ORDER))


def from_word_order(packed: Tensor) -> Tensor:
    """The inverse of `to_word_order`."""
    return _in_order(packed, torch.tensor(_WORD_ORDER).argsort())


def _in_order(packed: Tensor, order: Tensor) -> Tensor:
    codes = _codes(packed)
    return _bytes(codes.view(*codes.shape[:-1], -1, 8)[..., order].flatten(-2))


def _codes(packed: Tensor) -> Tensor:
    """[.., K/2] -> [.., K], the low bits of a byte first."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def _bytes(codes: Tensor) -> Tensor:
    """The inverse of `_codes`."""
    return codes[..., 0::2] | codes[..., 1::2] << 4
