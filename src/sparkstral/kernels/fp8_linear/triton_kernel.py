"""Triton form of kernels/fp8_linear; the contract stands in the folder's `__init__`.

The product of few rows is that of kernels/bf16_linear with configurations of its own: a tile has half the bytes, so
that twice the elements are in flight. `dequantize` walks a weight once, for products with many rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.bf16_linear import triton_kernel as bf16_linear
from sparkstral.kernels.bf16_linear.triton_kernel import LinearConfig
from sparkstral.kernels.fp8_quantize import Fp8Rows
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec

DECODED_ELEMENTS = 8192  # of a program of dequantize: 8 KiB in, 16 out
DECODE_WARPS = 8

CONFIGS = {
    # Reasoned from bf16_linear's measured ones, not measured: as many bytes in flight, as far as registers and shared
    # memory go.
    (9, 0): replace(bf16_linear.CONFIGS[9, 0], fma_elements=16384, num_stages=7),
    (12, 1): replace(bf16_linear.CONFIGS[12, 1], num_stages=5),
}


def fp8_linear(x: Tensor, weight: Fp8Rows, out_dtype: torch.dtype, *, config: LinearConfig, pdl: bool) -> Tensor:
    """x [M, K], weight [N, K] -> parts [S, M, N]: float32, or out_dtype if S is 1."""
    return bf16_linear.product(x, weight.codes, weight.scale, out_dtype, config=config, pdl=pdl)


@triton.jit
def _dequantize(codes_ptr, scale_ptr, out_ptr, K: tl.constexpr, ELEMENTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    codes = tl.load(codes_ptr + row * K + k, mask=k < K, other=0.0)
    numbers = codes.to(tl.float32) * tl.load(scale_ptr + row)
    tl.store(out_ptr + row * K + k, numbers.to(out_ptr.dtype.element_ty), mask=k < K)


def dequantize(weight: Fp8Rows, out: Tensor) -> Tensor:
    """weight [N, K] -> out [N, K], contiguous."""
    rows, k = out.shape
    elements = min(DECODED_ELEMENTS, triton.next_power_of_2(k))
    _dequantize[(rows, triton.cdiv(k, elements))](
        weight.codes, weight.scale, out, K=k, ELEMENTS=elements, num_warps=DECODE_WARPS
    )
    return out


def specs(config: LinearConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The real model's four weights: both forms of the product, and decoding."""
    types = {"codes_ptr": "*fp8e4nv", "scale_ptr": "*fp32", "out_ptr": "*bf16"}
    depths = sorted({k for _, k in bf16_linear.SHAPES.values()})
    return [
        *bf16_linear.specs(config, pdl=pdl, scaled=True),
        *(
            KernelSpec(
                f"dequantize, {k} columns", _dequantize, types, {"K": k, "ELEMENTS": min(DECODED_ELEMENTS, k)},
                DECODE_WARPS, DEFAULT_STAGES,
            )
            for k in depths
        ),
    ]  # fmt: skip
