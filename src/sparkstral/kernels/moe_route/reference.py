"""Plain PyTorch of kernels/moe_route; the contract stands in the folder's `__init__`."""

from __future__ import annotations

from torch import Tensor


def moe_route(logits: Tensor, top_k: int, scaling: float) -> tuple[Tensor, Tensor]:
    """logits [T, E] -> weights [T, top_k], ids [T, top_k]."""
    # A stable sort, since topk promises nothing about the order of equal values.
    probabilities, ids = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    chosen = probabilities[:, :top_k]
    return chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scaling, ids[:, :top_k]
