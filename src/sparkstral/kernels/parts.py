"""The sum of a product's parts, for kernels that read what kernels/bf16_linear left in stretches of K."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_parts(parts_ptr, part_stride, mask, dtype: tl.constexpr, PARTS: tl.constexpr):
    """Add PARTS parts that lie part_stride apart, in their order, and round as a whole product would have been.

    Returns float32 of dtype's values; 0 where the mask is not set."""
    total = tl.load(parts_ptr, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts_ptr + part * part_stride, mask=mask, other=0.0).to(tl.float32)
    return total.to(dtype).to(tl.float32)
