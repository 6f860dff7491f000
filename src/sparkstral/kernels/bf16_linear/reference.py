"""Plain PyTorch of kernels/bf16_linear; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def bf16_linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """x [M, K], weight [N, K] -> [M, N] of out_dtype; summed and, if that is wider than x, kept in float32."""
    return F.linear(x.float(), weight.float()).to(out_dtype)
