"""A linear layer whose weight is NVFP4, activations left as they are (W4A16).

    dequantize(packed [..., N, K/2] uint8, scale [..., N, K/16] float8_e4m3fn, global_scale [...] float32,
               dtype) -> [..., N, K] dtype
    nvfp4_linear(x [..., K], packed [N, K/2], scale [N, K/16], global_scale []) -> [..., N] of x's dtype

The low nibble of byte j is column 2j, the high nibble column 2j+1. A code is a sign (bit 3) and one of the
magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. A scale serves 16 columns of a row, rows in order (no swizzle), and
global_scale divides: W = e2m1(code) · (float32(scale) / global_scale), in this order in float32, then rounded
to dtype.

Fast form, `triton_kernel.nvfp4_linear`: the same product on codes in the order of `packing` (the bytes are as many;
`reorder_` makes it in place) and K a multiple of 32. For few rows x is scaled to float16 by a power of two for each 16
values, exactly, whatever their size; for many it stays bfloat16 and the weight is decoded to bfloat16, exactly but for
the global scale, which multiplies the float32 sum.

Tolerance of a fast kernel: none for `dequantize`, which is bit for bit what compressed-tensors decompresses
to; 2e-2 of the row's largest output in bfloat16 for `nvfp4_linear`, whose sum may have another order.
The model decodes its weights once (model/linear.py) and calls `dequantize` alone; `nvfp4_linear` says what a
fast kernel must compute. CUDA graph: safe, nothing is read on the host. Source: docs/model.md, NVFP4 decoding.
"""

from sparkstral.kernels.nvfp4_linear.reference import dequantize, nvfp4_linear

__all__ = ["dequantize", "nvfp4_linear"]
