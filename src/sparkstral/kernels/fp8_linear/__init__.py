"""Products with a dense weight in FP8, activations left as they are: half the bytes of kernels/bf16_linear.

    fp8_linear(x [M, K], weight: Fp8Rows of [N, K], out_dtype) -> [M, N]

weight has one scale for each output row (kernels/fp8_quantize). The Triton form for few rows, M from 1 to 32, leaves
the sum over K in parts as kernels/bf16_linear does, under the same promises, and is the same code:

    triton_kernel.fp8_linear(x, weight, out_dtype, config=, pdl=) -> parts [S, M, N]

A code becomes bfloat16 (or float32) in registers, exactly; the row's scale multiplies the float32 sum, exactly too, as
it is a power of two. For more rows the weight is decoded and PyTorch's product (cuBLAS) is the fast form:

    triton_kernel.dequantize(weight, out) -> out [N, K], exact in bfloat16

so both forms multiply with the same numbers. There is no scaled product of FP8 activations: those would need a
judgement of their own, and decode, which is what FP8 weights are for, is bound by the bytes of the weight.

Tolerance of the fast form: that of a float32 sum in another order, then rounding to out_dtype.
CUDA graph: safe, nothing is read on the host.
"""

from sparkstral.kernels.fp8_linear.reference import fp8_linear

__all__ = ["fp8_linear"]
