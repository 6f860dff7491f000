"""Plain PyTorch of kernels/fp8_quantize; the contract stands in the folder's `__init__`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Bits of a float32: adding this to those of the row's largest value carries into the exponent if its significand is
# above 1.75, that of 448 = 1.75 x 2^8.
_ABOVE_LARGEST = 0x1FFFFF
_LEAST_EXPONENT = 127 - 111


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """A matrix, or several: codes [..., K] float8_e4m3fn, scale [...] float32, powers of two."""

    codes: Tensor
    scale: Tensor


def quantize(x: Tensor) -> Fp8Rows:
    """x [..., K] -> its codes and the scale of each row."""
    x = x.float()
    largest = x.abs().amax(-1)
    exponent = ((largest.view(torch.int32) + _ABOVE_LARGEST) >> 23) - 8
    scale = (exponent.clamp(min=_LEAST_EXPONENT) << 23).view(torch.float32)
    scale = scale.masked_fill(~largest.isfinite(), torch.nan)
    return Fp8Rows((x / scale.unsqueeze(-1)).to(torch.float8_e4m3fn), scale)


def dequantize(rows: Fp8Rows, dtype: torch.dtype) -> Tensor:
    """[..., K] of dtype; exact in bfloat16 and wider."""
    return (rows.codes.float() * rows.scale.unsqueeze(-1)).to(dtype)
