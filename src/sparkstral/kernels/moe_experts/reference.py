"""Plain PyTorch of kernels/moe_experts; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def moe_experts(x: Tensor, weights: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """x [T, H], weights and ids [T, k], gate_up [E, 2I, H], down [E, H, I] -> [T, H]."""
    top_k = ids.shape[1]
    experts_of_pairs = ids.flatten()
    by_expert = experts_of_pairs.argsort(stable=True)
    inputs = x[by_expert // top_k]
    outputs = x.new_empty(len(by_expert), x.shape[1])
    end = 0
    for expert, count in enumerate(experts_of_pairs.bincount().tolist()):
        if count == 0:
            continue
        begin, end = end, end + count
        gate, up = F.linear(inputs[begin:end], gate_up[expert]).chunk(2, dim=-1)
        outputs[by_expert[begin:end]] = F.linear(F.silu(gate) * up, down[expert])
    pairs = outputs.view(*ids.shape, x.shape[1]).float()
    return torch.bmm(weights.unsqueeze(1), pairs).squeeze(1).to(x.dtype)
