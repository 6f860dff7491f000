"""The parameters of a matrix product as one dense tensor.

Owns how each stored form becomes numbers. This is the reference path: experts are decoded once, when the model is
built. The fast kernels of the GPU path will read the packed weights instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkstral.kernels import nvfp4_linear
from sparkstral.model.weights import DenseWeight, Fp8Weight, Weight


def to_dense(weight: Weight, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`weight` [..., N, K] as a tensor of `dtype` on `device`; shares memory with it where nothing needs to change."""
    if isinstance(weight, DenseWeight):
        return weight.weight.to(device, dtype)
    if isinstance(weight, Fp8Weight):
        return (weight.weight.to(device).float() * weight.scale.to(device)[..., None, None]).to(dtype)
    return nvfp4_linear.dequantize(
        weight.packed.to(device), weight.scale.to(device), weight.global_scale.to(device), dtype
    )
