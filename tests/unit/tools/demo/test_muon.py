"""The optimiser of stacked matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tools.demo.muon import MOMENTUM, UPDATE_RMS, WEIGHT_DECAY, Muon, orthogonal


@pytest.mark.parametrize("shape", [(3, 8, 24), (3, 24, 8), (2, 16, 16)])
def test_every_matrix_of_a_stack_gets_singular_values_near_one(shape: tuple[int, ...]) -> None:
    stack = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-6, 1.0, 1e3][: shape[0]])[
        :, None, None
    ]
    values = torch.linalg.svdvals(orthogonal(stack))
    assert values.max() < 1.3
    assert values.min() > 0.5


def test_a_stack_moves_as_its_matrices_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    whole = nn.Parameter(torch.randn(2, 6, 10, generator=generator))
    alone = [nn.Parameter(matrix.detach().clone()[None]) for matrix in whole]
    together, apart = Muon([whole]), Muon(alone)
    for _ in range(3):
        whole.grad = torch.randn(2, 6, 10, generator=generator)
        for matrix, gradient in zip(alone, whole.grad, strict=True):
            matrix.grad = gradient[None].clone()
        together.step(0.1)
        apart.step(0.1)
    torch.testing.assert_close(whole.detach(), torch.cat([matrix.detach() for matrix in alone]))


def test_the_first_step_is_decay_and_a_scaled_orthogonal_gradient() -> None:
    start = torch.ones(1, 4, 9)
    parameter = nn.Parameter(start.clone())
    parameter.grad = torch.randn(1, 4, 9, generator=torch.Generator().manual_seed(2))
    Muon([parameter]).step(0.01)
    seen = parameter.grad * (1 - MOMENTUM) * (1 + MOMENTUM)  # the momentum looks one step ahead
    expected = start * (1 - 0.01 * WEIGHT_DECAY) - 0.01 * UPDATE_RMS * 3 * orthogonal(seen)
    torch.testing.assert_close(parameter.detach(), expected)
