"""Triton form of kernels/nvfp4_quantize: device functions, and the pairs of a mixture of experts.

Rounding to E4M3 and E2M1 is arithmetic on float32 that every GPU and the interpreter do alike: Triton's own conversion
to E4M3 rounds on a GPU and cuts off in the interpreter. Two launches: `_quantize_gathered` makes a row for each sorted
pair of moe_route from its token's x, with its expert's global scale; `_quantize_in_place` puts rows of inner values
where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import KernelSpec


@triton.jit
def _e4m3(size):
    """Of float32 that are not negative: E4M3's bits as uint8 and its value as float32; at most 448, NaN stays."""
    bits = size.to(tl.int32, bitcast=True)
    # Three bits of the significand stay; half of what goes, less one if the last that stays is even, carries.
    rounded = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -1048576
    # At 2^14 a float32 counts in steps of 2^-9, as E4M3 does below 2^-6.
    counted = size + 16384.0
    is_small = size < 0.015625
    code = tl.where(is_small, counted.to(tl.int32, bitcast=True) - 0x46800000, (rounded >> 20) - 960)
    value = tl.where(is_small, counted - 16384.0, rounded.to(tl.float32, bitcast=True))
    is_large = value > 448.0
    is_sick = size != size
    code = tl.where(is_sick, 0x7F, tl.where(is_large, 0x7E, code))
    return code.to(tl.uint8), tl.where(is_sick, size, tl.where(is_large, 448.0, value))


@triton.jit
def _e2m1(x):
    """Codes as int32, to the nearest, ties to the even code."""
    size = tl.abs(x)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    return code | tl.where(x < 0, 8, 0)


@triton.jit
def _quantized(low, high, global_scale):
    """low and high [GROUPS, 8] float32, the values of a group's eight low and high nibbles -> (bytes [GROUPS, 8],
    scales [GROUPS] as E4M3's bits)."""
    largest = tl.maximum(tl.max(tl.abs(low), axis=1), tl.max(tl.abs(high), axis=1))
    sick = tl.maximum(tl.max((low - low != 0).to(tl.int32), axis=1), tl.max((high - high != 0).to(tl.int32), axis=1))
    largest = tl.where(sick > 0, float("nan"), largest)
    scale_bits, scale = _e4m3(tl.div_rn(global_scale * largest, 6.0))
    inverse = tl.where(scale > 0, tl.div_rn(global_scale, scale), 0.0)[:, None]
    return (_e2m1(low * inverse) | (_e2m1(high * inverse) << 4)).to(tl.uint8), scale_bits


@triton.jit
def _low_column(byte):
    """The column of the low nibble of each byte of a row in word order; the high one's is 2 less."""
    return byte // 4 * 8 + 6 - byte % 2 * 4 + byte % 4 // 2


@triton.jit
def _quantize_gathered(
    x_ptr, pairs_ptr, starts_ptr, global_scale_ptr, codes_ptr, scales_ptr,
    SIZE: tl.constexpr, EXPERTS: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    position = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, triton.next_power_of_2(SIZE // 16))
    inside = group < SIZE // 16
    byte = group[:, None] * 8 + tl.arange(0, 8)[None, :]
    each = tl.arange(0, triton.next_power_of_2(EXPERTS))
    wait_for_inputs(PDL)
    ends = tl.load(starts_ptr + 1 + each, mask=each < EXPERTS, other=2147483647)
    expert = tl.sum((ends <= position).to(tl.int32), axis=0)
    token = tl.load(pairs_ptr + position) // SLOTS
    at = x_ptr + token.to(tl.int64) * SIZE + _low_column(byte)
    low = tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)
    high = tl.load(at - 2, mask=inside[:, None], other=0.0).to(tl.float32)
    codes, scales = _quantized(low, high, tl.load(global_scale_ptr + expert))
    tl.store(codes_ptr + position * (SIZE // 2) + byte, codes, mask=inside[:, None])
    tl.store(scales_ptr + position * (SIZE // 16) + group, scales, mask=inside)


@triton.jit
def _quantize_in_place(
    h_ptr, starts_ptr, global_scale_ptr, bytes_ptr,
    SIZE: tl.constexpr, EXPERTS: tl.constexpr, STRIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A row [SIZE] becomes, from where it begins, SIZE/2 bytes of codes and SIZE/16 of scales."""
    let_next_start(PDL)
    position = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, triton.next_power_of_2(SIZE // 16))
    inside = group < SIZE // 16
    byte = group[:, None] * 8 + tl.arange(0, 8)[None, :]
    each = tl.arange(0, triton.next_power_of_2(EXPERTS))
    wait_for_inputs(PDL)
    ends = tl.load(starts_ptr + 1 + each, mask=each < EXPERTS, other=2147483647)
    expert = tl.sum((ends <= position).to(tl.int32), axis=0)
    at = h_ptr + position * SIZE + _low_column(byte)
    low = tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)
    high = tl.load(at - 2, mask=inside[:, None], other=0.0).to(tl.float32)
    tl.debug_barrier()  # the row is read before any of it is overwritten
    codes, scales = _quantized(low, high, tl.load(global_scale_ptr + expert))
    tl.store(bytes_ptr + position * STRIDE + byte, codes, mask=inside[:, None])
    tl.store(bytes_ptr + position * STRIDE + SIZE // 2 + group, scales, mask=inside)


@dataclass(frozen=True, slots=True)
class QuantizeSpecs:
    """The variants of one model's launches."""

    num_experts: int
    slots: int  # K + 1
    pdl: bool

    def gathered(self, size: int) -> KernelSpec:
        return KernelSpec(
            f"_quantize_gathered, {size}", _quantize_gathered,
            {"x_ptr": "*bf16", "pairs_ptr": "*i32", "starts_ptr": "*i32", "global_scale_ptr": "*fp32",
             "codes_ptr": "*u8", "scales_ptr": "*u8"},
            {"SIZE": size, "EXPERTS": self.num_experts, "SLOTS": self.slots, "PDL": self.pdl},
            num_warps=4,
        )  # fmt: skip

    def in_place(self, size: int, item_bytes: int) -> KernelSpec:
        return KernelSpec(
            f"_quantize_in_place, {size}", _quantize_in_place,
            {"h_ptr": "*bf16", "starts_ptr": "*i32", "global_scale_ptr": "*fp32", "bytes_ptr": "*u8"},
            {"SIZE": size, "EXPERTS": self.num_experts, "STRIDE": size * item_bytes, "PDL": self.pdl}, num_warps=4,
        )  # fmt: skip
