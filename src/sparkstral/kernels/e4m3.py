"""kernels/fp8_quantize on the device: the bits of E4M3 by arithmetic that the interpreter and every GPU do alike.

Triton's own conversion rounds on a GPU and cuts off in the interpreter, where the kernels are tested.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_scale(x):
    """x [K] float32 -> the row's scale, a power of two, or NaN."""
    largest = tl.max(tl.abs(x), axis=0).to(tl.int32, bitcast=True)
    exponent = ((largest + 0x1FFFFF) >> 23) - 8
    scale = (tl.maximum(exponent, 16) << 23).to(tl.float32, bitcast=True)
    is_sick = tl.max((x - x != 0).to(tl.int32), axis=0)
    return tl.where(is_sick > 0, float("nan"), scale)


@triton.jit
def e4m3_codes(x, scale):
    """x [K] float32 over its scale, in E4M3, as uint8; beyond 448 it is 448."""
    inverse = ((254 << 23) - scale.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)  # exact, no division is
    size = tl.abs(x) * inverse
    bits = size.to(tl.int32, bitcast=True)
    # Three bits of the significand stay; half of what goes, less one if the last that stays is even, carries.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # At 2^14 a float32 counts in steps of 2^-9, those of E4M3 below 2^-6.
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.minimum(tl.where(size < 0.015625, small, normal), 0x7E)
    return (code | tl.where(x < 0, 0x80, 0)).to(tl.uint8)
