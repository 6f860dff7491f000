"""The optimiser of the matrices: momentum whose update is made orthogonal, for stacks of matrices at once.

torch.optim.Muon takes one matrix a parameter; here a parameter is a stack [M, N, K] (experts, or one projection of
all layers), and a step is a few batched products. Source: K. Jordan and others, "Muon: an optimizer for hidden
layers", 2024; the scale of the update from "Muon is scalable for LLM training", 2025, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
WEIGHT_DECAY = 0.1
UPDATE_RMS = 0.4  # of an update at learning rate 1; AdamW's is 0.2 to 0.4, so that one schedule serves both
_ITERATIONS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that brings singular values near 1


def orthogonal(stack: Tensor) -> Tensor:
    """The stack [M, N, K], each matrix with its singular values brought to about 1 (0.7 to 1.2)."""
    x = stack.bfloat16() if stack.is_cuda else stack
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.float().square().sum((-2, -1), keepdim=True).sqrt() + 1e-7).to(x.dtype)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if is_tall else x).to(stack.dtype)


class Muon:
    """Moves stacks of matrices [M, N, K]."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._moved = [(parameter, torch.zeros_like(parameter)) for parameter in parameters]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update from the parameters' gradients."""
        for parameter, momentum in self._moved:
            if parameter.grad is None:
                raise RuntimeError("step() is called after the gradients are there.")
            momentum.lerp_(parameter.grad, 1 - MOMENTUM)
            update = orthogonal(parameter.grad.lerp(momentum, MOMENTUM))
            scale = UPDATE_RMS * max(parameter.shape[-2:]) ** 0.5
            parameter.mul_(1 - learning_rate * WEIGHT_DECAY).add_(update, alpha=-learning_rate * scale)
