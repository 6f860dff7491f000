"""The Triton forms of the small product in the interpreter (float32 there: its dot does not know bfloat16)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import bf16_linear
from sparkstral.kernels.bf16_linear import triton_kernel
from sparkstral.kernels.bf16_linear.triton_kernel import LinearConfig

CONFIG = LinearConfig(
    max_fma_tokens=8, fma_elements=1024, fma_num_warps=4,
    rows=16, depth=32, num_warps=4, num_stages=1, num_programs=8, max_parts=4,
)  # fmt: skip
# Whole tiles; rows that are no multiple of a tile; a depth that is no power of 2 nor multiple of a tile.
SHAPES = [(32, 256), (40, 128), (48, 208)]


def operands(num_tokens: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n * k)
    weight = torch.randn(n, k, generator=generator) * k**-0.5
    return torch.randn(32, k, generator=generator)[:num_tokens], weight


def product(x: Tensor, weight: Tensor) -> Tensor:
    return triton_kernel.bf16_linear(x, weight, torch.float32, config=CONFIG, pdl=False)


def assert_product(parts: Tensor, x: Tensor, weight: Tensor) -> None:
    expected = bf16_linear.bf16_linear(x, weight, torch.float32)
    torch.testing.assert_close(parts.sum(0), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("num_tokens", [1, 5, 8, 9, 20, 32])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_the_parts_add_up_to_the_product(num_tokens: int, n: int, k: int) -> None:
    x, weight = operands(num_tokens, n, k)
    assert_product(product(x, weight), x, weight)


@pytest.mark.parametrize("num_tokens", [2, 12])
def test_one_weight_that_is_one_percent_off_is_noticed(num_tokens: int) -> None:
    x, weight = operands(num_tokens, 48, 208)
    wrong = weight.clone()
    wrong[47, 207] *= 1.01
    with pytest.raises(AssertionError):
        assert_product(product(x, wrong), x, weight)


def test_few_tokens_leave_one_part_and_many_leave_those_of_the_shape() -> None:
    assert product(*operands(8, 32, 256)).shape == (1, 8, 32)
    assert product(*operands(9, 32, 256)).shape == (4, 9, 32)
    assert product(*operands(32, 32, 256)).shape == (4, 32, 32)


@pytest.mark.parametrize("counts", [(1, 2, 5, 8), (9, 16), (17, 32)])
def test_a_token_does_not_depend_on_its_batch(counts: tuple[int, ...]) -> None:
    for n, k in SHAPES:
        x, weight = operands(32, n, k)
        first, *others = [product(x[:count], weight)[:, : counts[0]] for count in counts]
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("num_tokens", [3, 12])
def test_nan_stays_in_its_token(num_tokens: int) -> None:
    x, weight = operands(num_tokens, 40, 128)
    x[1, 7] = float("nan")
    sick = product(x, weight).isnan().any(0).all(-1)
    assert sick.tolist() == [i == 1 for i in range(num_tokens)]


def test_bfloat16_in_and_out() -> None:
    x, weight = operands(4, 32, 256)
    x, weight = x.bfloat16(), weight.bfloat16()
    out = triton_kernel.bf16_linear(x, weight, torch.bfloat16, config=CONFIG, pdl=False)[0]
    assert out.dtype == torch.bfloat16
    # The interpreter cuts bfloat16 off instead of rounding: one unit in the last place.
    torch.testing.assert_close(out.double(), x.double() @ weight.double().T, rtol=2**-7, atol=1e-6)
