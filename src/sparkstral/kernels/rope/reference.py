"""Plain PyTorch of kernels/rope; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def yarn_inv_freq(
    *,
    dim: int,
    theta: float,
    factor: float,
    beta_fast: float,
    beta_slow: float,
    original_max_position_embeddings: int,
) -> Tensor:
    """Radians a position for each of dim/2 pairs -> [dim/2] float32, on the CPU.

    Pairs that turn more than beta_fast times within the original context keep their frequency, those that
    turn less than beta_slow times have it divided by `factor`, and a linear ramp over the pair's index joins
    the two (YaRN).
    """

    def pair_turning(times: float) -> float:
        return dim * math.log(original_max_position_embeddings / (2 * math.pi * times)) / (2 * math.log(theta))

    low = max(math.floor(pair_turning(beta_fast)), 0)
    high = min(math.ceil(pair_turning(beta_slow)), dim - 1)
    pair = torch.arange(dim // 2, dtype=torch.float64)
    ramp = ((pair - low) / max(high - low, 1e-3)).clamp(0, 1)
    return (theta ** (-2 * pair / dim) * ((1 - ramp) + ramp / factor)).float()


def rotation(positions: Tensor, inv_freq: Tensor) -> Tensor:
    """positions [T], inv_freq [P] -> [T, P] complex64."""
    angle = positions.float().unsqueeze(-1) * inv_freq
    return torch.complex(angle.cos(), angle.sin())


def rope(x: Tensor, rotation: Tensor) -> Tensor:
    """x [T, ..., 2P], rotation [T, P] -> [T, ..., 2P] of x's dtype."""
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    while rotation.dim() < pairs.dim():
        rotation = rotation.unsqueeze(1)
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)


def llama_4_scale(positions: Tensor, beta: float, original_max_position_embeddings: int) -> Tensor:
    """positions [T] -> [T] float32, the factor of the whole query head; 1 within the original context."""
    return 1 + beta * torch.log1p((positions // original_max_position_embeddings).float())
