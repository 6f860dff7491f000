from __future__ import annotations

import math

import torch

from sparkstral.kernels import rms_norm


def test_divides_by_the_root_mean_square_and_multiplies_by_the_weight() -> None:
    x = torch.tensor([[3.0, -4.0, 0.0, 0.0]])
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    root = math.sqrt((9 + 16) / 4 + 1e-6)
    expected = torch.tensor([[3 / root, -8 / root, 0, 0]])
    torch.testing.assert_close(rms_norm.rms_norm(x, weight, 1e-6), expected, rtol=1e-6, atol=0)


def test_epsilon_rules_where_the_vector_is_small() -> None:
    x = torch.full((1, 8), 1e-3)
    torch.testing.assert_close(rms_norm.rms_norm(x, torch.ones(8), 1e-6), torch.full((1, 8), 0.5**0.5))


def test_bfloat16_is_squared_in_float32_and_rounded_before_the_weight() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = (1 + 0.2 * torch.randn(64, generator=torch.Generator().manual_seed(1))).bfloat16()
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.equal(rms_norm.rms_norm(x, weight, 1e-6), weight * exact.bfloat16())
