"""The product with a weight in FP8, in the interpreter (float32 there), against the reference and exact arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import fp8_linear
from sparkstral.kernels.bf16_linear.triton_kernel import LinearConfig
from sparkstral.kernels.fp8_linear import triton_kernel
from sparkstral.kernels.fp8_quantize import Fp8Rows, dequantize, quantize
from sparkstral.model.linear import to_fp8

CONFIG = LinearConfig(
    max_fma_tokens=2, fma_elements=1024, fma_num_warps=4,
    rows=16, depth=32, num_warps=4, num_stages=1, num_programs=8, max_parts=4,
)  # fmt: skip
# Whole tiles; rows that are no multiple of a tile; a depth that is no power of 2 nor multiple of a tile.
SHAPES = [(32, 256), (40, 128), (48, 208)]


def operands(num_tokens: int, n: int, k: int) -> tuple[Tensor, Fp8Rows]:
    """Rows of the weight differ in size, so that a wrong row's scale is seen."""
    generator = torch.Generator().manual_seed(n * k)
    weight = torch.randn(n, k, generator=generator) * k**-0.5 * torch.logspace(-2, 2, n)[:, None]
    return torch.randn(32, k, generator=generator)[:num_tokens], quantize(weight)


def product(x: Tensor, weight: Fp8Rows) -> Tensor:
    return triton_kernel.fp8_linear(x, weight, torch.float32, config=CONFIG, pdl=False).sum(0)


def assert_product(x: Tensor, weight: Fp8Rows, expected: Tensor) -> None:
    """A float32 sum in another order, of products that are exact."""
    scale = x.abs() @ dequantize(weight, torch.float32).abs().T  # what the terms of a sum would be without signs
    torch.testing.assert_close(product(x, weight) / scale, expected / scale, rtol=0, atol=2e-6)


@pytest.mark.parametrize("num_tokens", [2, 20])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_it_is_the_reference_and_the_product_with_rounded_weights(num_tokens: int, n: int, k: int) -> None:
    x, weight = operands(num_tokens, n, k)
    expected = fp8_linear.fp8_linear(x, weight, torch.float32)
    exact = x.double() @ (weight.codes.double() * weight.scale.double()[:, None]).T
    torch.testing.assert_close(expected.double(), exact, rtol=1e-5, atol=1e-6 * float(exact.abs().max()))
    assert_product(x, weight, expected)


@pytest.mark.parametrize("num_tokens", [1, 12])
def test_a_scale_that_is_one_percent_off_is_noticed(num_tokens: int) -> None:
    x, weight = operands(num_tokens, 48, 208)
    expected = fp8_linear.fp8_linear(x, weight, torch.float32)
    scale = weight.scale.clone()
    scale[47] *= 1.01
    with pytest.raises(AssertionError):
        assert_product(x, Fp8Rows(weight.codes, scale), expected)


@pytest.mark.parametrize("num_tokens", [2, 12])
def test_the_scale_of_another_row_is_noticed(num_tokens: int) -> None:
    x, weight = operands(num_tokens, 40, 128)
    expected = fp8_linear.fp8_linear(x, weight, torch.float32)
    with pytest.raises(AssertionError):
        assert_product(x, Fp8Rows(weight.codes, weight.scale.roll(8)), expected)


def test_a_decoded_weight_is_the_references_to_the_bit() -> None:
    for n, k in SHAPES:
        _, weight = operands(1, n, k)
        out = torch.full((n, k), float("nan"))
        assert torch.equal(triton_kernel.dequantize(weight, out), dequantize(weight, torch.float32))


def test_a_weight_is_quantized_in_stripes_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    monkeypatch.setattr("sparkstral.model.linear._QUANTIZED_AT_ONCE", 7 * 96)
    stripes, whole = to_fp8(weight), quantize(weight)
    assert torch.equal(stripes.scale, whole.scale)
    assert torch.equal(stripes.codes.float(), whole.codes.float())
