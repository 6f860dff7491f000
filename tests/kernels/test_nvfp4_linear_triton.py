"""In float32, with values that bfloat16 holds: the interpreter cuts instead of rounding, which would hide errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkstral.kernels.nvfp4_linear import packing
from sparkstral.kernels.nvfp4_linear.triton_kernel import (
    FewProgram,
    LinearConfig,
    LinearWorkspace,
    ManyTile,
    nvfp4_linear,
    reorder_,
)
from tests.kernels.nvfp4_weights import StoredWeight, draw

ROWS, COLUMNS = 32, 192
CPU = torch.device("cpu")


def linear(x: Tensor, stored: StoredWeight, max_few: int) -> Tensor:
    config = LinearConfig(FewProgram(16, 4, 2), ManyTile(16, 32, 64, num_warps=4, num_stages=2), max_few)
    workspace = LinearWorkspace.allocate(len(x), x.shape[1], CPU)
    return nvfp4_linear(x, stored.pack(), workspace=workspace, config=config, pdl=False)


def inputs(rows: int, seed: int = 0) -> tuple[Tensor, StoredWeight]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, COLUMNS, generator=generator).bfloat16().float()
    return x, draw(ROWS, COLUMNS, generator=generator)


def assert_linear(x: Tensor, stored: StoredWeight, expected_of: StoredWeight, max_few: int) -> None:
    expected = x.double() @ expected_of.dense().T
    error = (linear(x, stored, max_few).double() - expected).abs().amax(1)
    # Few rows: eight products are added in float16, with 11 significant bits; many rows: only float32 rounds.
    tolerance = 2e-3 if len(x) <= max_few else 1e-5
    assert (error <= tolerance * expected.abs().amax(1)).all(), error / expected.abs().amax(1)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6])
def test_few_rows(rows: int) -> None:
    x, stored = inputs(rows)
    assert_linear(x, stored, stored, max_few=64)


@pytest.mark.parametrize("rows", [1, 16, 19])
def test_many_rows(rows: int) -> None:
    x, stored = inputs(rows)
    assert_linear(x, stored, stored, max_few=0)


@pytest.mark.parametrize("max_few", [64, 0])
def test_a_weight_one_per_cent_too_large_is_noticed(max_few: int) -> None:
    x, stored = inputs(3)
    larger = StoredWeight(stored.packed, stored.scale, stored.global_scale / 1.01)
    with pytest.raises(AssertionError):
        assert_linear(x, stored, larger, max_few)


@pytest.mark.parametrize("max_few", [64, 0])
def test_one_wrong_code_is_noticed(max_few: int) -> None:
    x, stored = inputs(3)
    packed = stored.packed.clone()
    packed[:, 40] ^= 0x06
    with pytest.raises(AssertionError):
        assert_linear(x, stored, StoredWeight(packed, stored.scale, stored.global_scale), max_few)


def test_activations_of_any_size_pass() -> None:
    """Far above and below what float16 holds, and rows with both."""
    x, stored = inputs(4)
    x[0] *= 2.0**100
    x[1] *= 2.0**-100
    x[2, :64] *= 2.0**30
    x[3] = 0
    assert_linear(x[:3], stored, stored, max_few=64)
    assert not linear(x, stored, max_few=64)[3].any()


def test_a_row_with_nan_or_infinity_is_sick_alone() -> None:
    x, stored = inputs(4)
    healthy = linear(x, stored, max_few=64)
    x[1, 5] = float("nan")
    x[2, 7] = float("inf")
    y = linear(x, stored, max_few=64)
    assert not y[1].isfinite().any()
    assert not y[2].isfinite().any()
    assert torch.equal(y[[0, 3]], healthy[[0, 3]])


def test_a_row_has_the_same_bits_in_every_company() -> None:
    x, stored = inputs(6)
    together = linear(x, stored, max_few=64)
    for row in range(6):
        assert torch.equal(linear(x[row : row + 1], stored, max_few=64)[0], together[row])


def test_codes_are_reordered_in_place() -> None:
    packed = torch.randint(0, 256, (3, 700, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    expected = packing.reorder(packed)
    codes = reorder_(packed)
    assert codes.data_ptr() == packed.data_ptr()
    assert torch.equal(codes, expected)
