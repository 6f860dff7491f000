"""Rows of numbers in FP8 (E4M3), each with a power of two.

    quantize(x [..., K]) -> Fp8Rows: codes [..., K] float8_e4m3fn, scale [...] float32
    dequantize(rows, dtype) -> [..., K] of dtype

scale is the smallest power of two (at least 2^-111) with which no value of the row passes 448, E4M3's largest; codes
are x / scale, rounded to the nearest, ties to even, values below 2^-6 to multiples of 2^-9. A row of zeros is zeros;
one with anything that is not finite has a scale of NaN, so that all of it is NaN.

Why a power of two: code times scale is then exact in bfloat16, so that a weight or a latent is the same number wherever
it is read (decoded before a product, or the product scaled after it), and the references compare with the kernels
without a rounding between. It costs nothing: a float's relative error does not depend on its exponent (demo,
2026-12-02: the mean KL of FP8 latents is 4.2e-4 with powers of two and 4.9e-4 with scales that use all of 448).

Error: at most 2^-4 of a value, or 2^-10 of the scale where that is more. `triton_kernel`s that quantize use
kernels/e4m3, which agrees with this to the bit. CUDA graph: safe. Source: OCP 8-bit floating point specification 1.0.
"""

from sparkstral.kernels.fp8_quantize.reference import Fp8Rows, dequantize, quantize

__all__ = ["Fp8Rows", "dequantize", "quantize"]
