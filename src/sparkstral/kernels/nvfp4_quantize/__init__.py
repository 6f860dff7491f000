"""Activations in NVFP4, for products of which both sides are (W4A4).

    quantize(x [T, K], global_scale [T] or one number, float32) -> packed [T, K/2] uint8, scale [T, K/16] float8_e4m3fn
    dequantize(packed, scale, global_scale) -> [T, K] float32

K is a multiple of 16. With G the global scale, a divisor that was calibrated (docs/model.md 3.4: 2,688 over the
largest activation): of each 16 neighbours s = e4m3(G · amax / 6), at most 448; a code is e2m1(x · (G / s)), to the
nearest, ties to the even code, at most 6, and 0 where s is 0; the value is code · s / G. Two codes a byte, the even
column in the low bits, as weights are stored. A group with a NaN or an infinity has a scale of NaN, so that its row
stays sick.

Triton form, `pairs`: the same bits, codes in word order (`to_word_order`): of eight neighbours' codes c0 .. c7
the nibbles of four bytes, from the lowest, are c6 c4 c2 c0 c7 c5 c3 c1. That is the order in which weights that
nvfp4_linear.packing has reordered become nibbles with the fewest instructions; a sum over K does not care. CUDA graph:
safe.
"""

from sparkstral.kernels.nvfp4_quantize.reference import dequantize, from_word_order, quantize, to_word_order

__all__ = ["dequantize", "from_word_order", "quantize", "to_word_order"]
