"""The mixture-of-experts block: router, routed experts, shared expert.

Must not know where its input comes from; kernels/moe_route and kernels/moe_experts own the arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels import moe_experts, moe_route
from sparkstral.model.config import NUM_EXPERTS_PER_TOK, ROUTED_SCALING_FACTOR
from sparkstral.model.linear import column_major, to_dense
from sparkstral.model.weights import ExpertWeights, LayerWeights


class MixtureOfExperts:
    """One layer's block. The router is float32 whatever `dtype` is: rounding would pick other experts."""

    def __init__(self, weights: LayerWeights, device: torch.device, dtype: torch.dtype) -> None:
        self._router = column_major(weights.router.to(device, torch.float32))
        self._gate_up, self._down = _fuse(weights.experts, device, dtype)
        self._shared_gate_up, self._shared_down = _fuse(weights.shared_expert, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, H], normalised -> [T, H], without the residual. The shared expert is added unweighted."""
        weights, ids = moe_route.moe_route(
            F.linear(x.float(), self._router), NUM_EXPERTS_PER_TOK, ROUTED_SCALING_FACTOR
        )
        gate, up = F.linear(x, self._shared_gate_up).chunk(2, dim=-1)
        shared = F.linear(F.silu(gate) * up, self._shared_down)
        return moe_experts.moe_experts(x, weights, ids, self._gate_up, self._down) + shared


def _fuse(weights: ExpertWeights, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """gate_up [..., 2I, H] (the gate's rows first) and down [..., H, I]: two products instead of three."""
    gate_up = torch.cat((to_dense(weights.gate, device, dtype), to_dense(weights.up, device, dtype)), dim=-2)
    return column_major(gate_up), column_major(to_dense(weights.down, device, dtype))
