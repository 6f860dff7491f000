"""E4M3 with a power of two for each row: against a table of all codes; the device against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparkstral.kernels.e4m3 import e4m3_codes, row_scale
from sparkstral.kernels.fp8_quantize import dequantize, quantize

# All finite magnitudes of E4M3, from the bits: 2^-9 steps below 2^-6, then three bits of significand.
MAGNITUDES = np.array([m / 512 for m in range(8)] + [(8 + m) / 8 * 2.0**e for e in range(-6, 9) for m in range(8)][:-1])


def nearest(values: np.ndarray) -> np.ndarray:
    """Magnitudes of E4M3 nearest to |values| <= 448 (float64), ties to the even code."""
    above = np.searchsorted(MAGNITUDES, values).clip(1, len(MAGNITUDES) - 1)
    low, high = MAGNITUDES[above - 1], MAGNITUDES[above]
    is_tie = values - low == high - values
    is_low = np.where(is_tie, (above - 1) % 2 == 0, values - low < high - values)
    return np.where(is_low, low, high)


ROWS = st.lists(st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False), min_size=1, max_size=24)


@given(ROWS, st.integers(-100, 0))
@settings(max_examples=100, deadline=None)
def test_every_value_becomes_the_nearest_ties_to_even(row: list[float], power: int) -> None:
    # Close to each other, too: rows of one exponent's neighbourhood meet ties and values below 2^-6.
    for values in (np.array(row, np.float32), np.sign(row).astype(np.float32) * np.float32(2.0**power) * 1.0625):
        x = torch.from_numpy(values.copy())
        rows = quantize(x)
        scale = float(rows.scale)
        assert np.log2(scale) == round(np.log2(scale))
        largest = float(x.abs().max())
        assert largest <= 448 * scale
        assert scale == 2.0**-111 or largest > 224 * scale
        expected = nearest(np.abs(values.astype(np.float64)) / scale)
        assert np.array_equal(rows.codes.double().abs().numpy(), expected)
        assert bool(((rows.codes.float() < 0) <= (x < 0)).all())


@given(ROWS)
@settings(max_examples=100, deadline=None)
def test_what_is_decoded_is_exact_in_bfloat16_and_stays_what_it_is(row: list[float]) -> None:
    rows = quantize(torch.tensor(row))
    exact = dequantize(rows, torch.float32)
    assert torch.equal(dequantize(rows, torch.bfloat16).float(), exact)
    assert torch.equal(dequantize(quantize(exact), torch.float32), exact)


def test_a_row_with_what_is_not_finite_is_nan() -> None:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    x[1, 3], x[2, 5] = float("inf"), float("nan")
    for dtype in (torch.float32, torch.bfloat16):
        decoded = dequantize(quantize(x), dtype)
        assert decoded.isnan().all(-1).tolist() == decoded.isnan().any(-1).tolist() == [False, True, True, False]


@triton.jit
def _quantize(x_ptr, codes_ptr, scale_ptr, K: tl.constexpr):
    at = tl.program_id(0) * K + tl.arange(0, K)
    x = tl.load(x_ptr + at)
    scale = row_scale(x)
    tl.store(scale_ptr + tl.program_id(0), scale)
    tl.store(codes_ptr + at, e4m3_codes(x, scale))


def on_device(x: Tensor) -> tuple[Tensor, Tensor]:
    codes, scale = torch.zeros(x.shape, dtype=torch.uint8), torch.zeros(len(x))
    _quantize[(len(x),)](x, codes, scale, x.shape[1])
    return codes, scale


@pytest.mark.parametrize("spread", [0.0, 3.0, 8.0])
def test_the_devices_arithmetic_agrees_to_the_bit(spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 256, generator=generator) * torch.logspace(-spread, 0, 256)
    x *= torch.logspace(-36, 36, 64)[:, None]
    x[0], x[1], x[2] = 0.0, torch.linspace(-448, 448, 256), torch.linspace(-2, 2, 256) ** 9
    codes, scale = on_device(x)
    rows = quantize(x)
    assert torch.equal(scale, rows.scale)
    assert torch.equal(codes.view(torch.float8_e4m3fn).float(), rows.codes.float())


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_the_device_makes_nan_of_a_row_with_what_is_not_finite(value: str) -> None:
    _, scale = on_device(torch.tensor([[1.0, float(value), -2.0, 0.5], [1.0, 0.0, 448.0, 0.5]]))
    assert scale.isnan().tolist() == [True, False]
