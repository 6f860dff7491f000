"""Plain PyTorch of kernels/embed; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor


def embed(
    input_ids: Tensor,
    sources: Tensor,
    previous: Tensor,
    positions: Tensor,
    embedding: Tensor,
    rotations: Tensor,
    query_scales: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes as in the contract."""
    token_ids = torch.where(sources >= 0, previous[sources.clamp(min=0).long()], input_ids)
    return embedding[token_ids], rotations[positions], query_scales[positions]
