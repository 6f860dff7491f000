"""NVFP4 weights as the fast kernels read them: the same bits, the codes in another order.

Owns the order of a word's codes and how to get there and back; must not know whose weight it is. 16 codes of a row
make an int64 of two 32-bit words. In a word, code k (0..7) lies in half k % 2 (even codes low), pair j = k // 2:

    bit of a half   15  14  13  12  11-9  8-6  5-3  2-0
    of pair j        0   2   3   1    0    1    2    3
                   └── sign bits ─┘ └── magnitudes ──┘

A magnitude (two bits of exponent, one of mantissa) that is shifted to bits 11-9 of a half, its sign to bit 15, is
the float16 value of the code times 2^-14, subnormals included: masks and shifts are all the decoding, and a word
and a mask are two neighbours along K that multiply two neighbours of x at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAGNITUDE_BITS = (9, 6, 3, 0)  # lowest bit of pair j's magnitude in its half
SIGN_BITS = (15, 12, 14, 13)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [..., N, K], of P stacked parts with N/P rows and a global scale each."""

    codes: Tensor  # [..., N, K/16] int64, see the file's head
    scale: Tensor  # [..., N, K/16] float8_e4m3fn, as stored
    factor: Tensor  # [..., P] float32, 1 / global_scale


def pack(packed: Tensor, scale: Tensor, global_scale: Tensor) -> PackedWeight:
    """As stored: packed [..., N, K/2] uint8, scale [..., N, K/16], global_scale [..., P] float32; K a multiple of
    32, as a thread takes two groups. Makes a second copy of the codes; `triton_kernel.reorder_` works in place."""
    if packed.shape[-1] % 16:
        raise ValueError(f"a row has {2 * packed.shape[-1]} columns; the kernels take multiples of 32")
    return PackedWeight(reorder(packed), scale, 1 / global_scale)


def reorder(packed: Tensor) -> Tensor:
    """Stored codes [..., K/2] uint8 -> [..., K/16] int64."""
    words = packed.contiguous().view(torch.int32).long()
    out = torch.zeros_like(words)
    for code in range(8):
        half, pair = code % 2, code // 2
        nibble = words >> 4 * code
        out |= (nibble & 7) << MAGNITUDE_BITS[pair] + 16 * half
        out |= (nibble >> 3 & 1) << SIGN_BITS[pair] + 16 * half
    return _low_words(out).view(torch.int64)


def restore(codes: Tensor) -> Tensor:
    """The inverse of `reorder`: [..., K/16] int64 -> [..., K/2] uint8."""
    words = codes.contiguous().view(torch.int32).long()
    out = torch.zeros_like(words)
    for code in range(8):
        half, pair = code % 2, code // 2
        out |= (words >> MAGNITUDE_BITS[pair] + 16 * half & 7) << 4 * code
        out |= (words >> SIGN_BITS[pair] + 16 * half & 1) << 4 * code + 3
    return _low_words(out).view(torch.uint8)


def _low_words(wide: Tensor) -> Tensor:
    """The low 32 bits of each int64 as int32, whatever their sign bit is."""
    return torch.where(wide >= 1 << 31, wide - (1 << 32), wide).int()
