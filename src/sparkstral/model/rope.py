"""What positions do to queries and keys, computed once for a forward pass and used by every layer.

Owns the frequencies of the model's configuration; kernels/rope owns the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkstral.kernels import rope
from sparkstral.model.config import QK_ROPE_HEAD_DIM, ModelConfig


@dataclass(frozen=True, slots=True)
class PositionTerms:
    rotation: Tensor  # [T, 32] complex64: what q_rope and k_rope are turned by
    query_scale: Tensor  # [T] of the model's dtype: the llama-4 factor of the whole query


class RotaryEmbedding:
    """The frequencies of a configuration, on a device."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._inv_freq = rope.yarn_inv_freq(
            dim=QK_ROPE_HEAD_DIM,
            theta=config.rope_theta,
            factor=config.rope_factor,
            beta_fast=config.rope_beta_fast,
            beta_slow=config.rope_beta_slow,
            original_max_position_embeddings=config.original_max_position_embeddings,
        ).to(device)
        self._beta = config.llama_4_scaling_beta
        self._original = config.llama_4_original_max_position_embeddings
        self._dtype = dtype

    def at(self, positions: Tensor) -> PositionTerms:
        """positions [T] int64 -> the terms of these T tokens."""
        return PositionTerms(
            rotation=rope.rotation(positions, self._inv_freq),
            query_scale=rope.llama_4_scale(positions, self._beta, self._original).to(self._dtype),
        )
