"""The parameters of a matrix product as one dense tensor.

Owns how each stored form becomes numbers, and how they lie in memory. This is the reference path: weights are
decoded once, when the model is built. The fast kernels of the GPU path will read packed experts instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkstral.kernels import nvfp4_linear
from sparkstral.kernels.fp8_quantize import Fp8Rows, dequantize, quantize
from sparkstral.model.weights import DenseWeight, Fp8Weight, Weight
from sparkstral.types import Precision

_QUANTIZED_AT_ONCE = 1 << 24  # numbers: 64 MiB in float32, and some more of these


def to_dense(weight: Weight, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`weight` [..., N, K] as a tensor of `dtype` on `device`."""
    if isinstance(weight, DenseWeight):
        return weight.weight.to(device, dtype)
    if isinstance(weight, Fp8Weight):
        return (weight.weight.to(device).float() * weight.scale.to(device)[..., None, None]).to(dtype)
    return nvfp4_linear.dequantize(
        weight.packed.to(device), weight.scale.to(device), weight.global_scale.to(device), dtype
    )


def to_fp8(weight: Tensor) -> Fp8Rows:
    """`weight` [N, .., K] with a scale for each row; little memory beside the result, whatever its size."""
    codes = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    scale = torch.empty(weight.shape[:-1], dtype=torch.float32, device=weight.device)
    step = max(1, _QUANTIZED_AT_ONCE // weight[0].numel())
    for begin in range(0, len(weight), step):
        part = quantize(weight[begin : begin + step])
        codes[begin : begin + step], scale[begin : begin + step] = part.codes, part.scale
    return Fp8Rows(codes, scale)


def to_precision(weight: Weight, device: torch.device, dtype: torch.dtype, precision: Precision) -> Tensor:
    """`to_dense`, with the numbers that the kernels multiply with when the weight is held in FP8."""
    dense = to_dense(weight, device, dtype)
    return dense if precision == "bf16" else dequantize(to_fp8(dense), dtype)


def column_major(weight: Tensor) -> Tensor:
    """`weight` [..., N, K], equal, with neighbours along N side by side in memory.

    A product with few rows then runs along N: on one AVX-512 core the demo's head (8192 x 384, float32) takes
    0.52 ms instead of 1.31 ms for one token, the same for hundreds (2026-12-02).
    """
    return weight.mT.contiguous().mT
