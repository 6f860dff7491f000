"""Plain PyTorch of kernels/fp8_linear; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels.fp8_quantize import Fp8Rows, dequantize


def fp8_linear(x: Tensor, weight: Fp8Rows, out_dtype: torch.dtype) -> Tensor:
    """x [M, K], weight [N, K] -> [M, N] of out_dtype, summed in float32."""
    return F.linear(x.float(), dequantize(weight, torch.float32)).to(out_dtype)
