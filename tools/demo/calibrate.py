"""Measures what the experts are given, for input_global_scale.

Owns that measurement alone; a W4A4 kernel scales activations by it, a W4A16 one ignores it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import Mistral4ForCausalLM

from tools.demo import model_config as shape

_LEAST_AMAX = 1e-3


@torch.no_grad()
def measure_input_amax(model: Mistral4ForCausalLM, forward: Any) -> dict[str, float]:
    """Largest magnitude of the input of each expert matrix, by native name, while `forward()` runs the model.

    An expert that no token reached gets its layer's largest.
    """
    measured: dict[str, Tensor] = {}

    def routed_hook(layer: int) -> Any:
        def hook(module: Any, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
            hidden, chosen, _ = inputs
            whole: dict[str, list[Tensor]] = {"w1": [], "w2": []}
            for expert in range(shape.NUM_EXPERTS):
                rows = hidden[(chosen == expert).any(-1)].float()
                gate, up = (rows @ module.gate_up_proj[expert].float().T).chunk(2, dim=-1)
                if rows.numel():
                    whole["w1"].append(rows.abs().max())
                    whole["w2"].append((silu(gate) * up).abs().max())
                    measured[f"layers.{layer}.experts.{expert}.w1"] = whole["w1"][-1]
                    measured[f"layers.{layer}.experts.{expert}.w2"] = whole["w2"][-1]
            for expert in range(shape.NUM_EXPERTS):
                name = f"layers.{layer}.experts.{expert}"
                for matrix, values in whole.items():
                    measured.setdefault(f"{name}.{matrix}", torch.stack(values).max())
                measured[f"{name}.w3"] = measured[f"{name}.w1"]

        return hook

    def shared_hook(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor]) -> None:
            measured[name] = inputs[0].float().abs().max()

        return hook

    handles = []
    for number, layer in enumerate(model.model.layers):
        shared = layer.mlp.shared_experts
        handles.append(layer.mlp.experts.register_forward_pre_hook(routed_hook(number)))
        for matrix, module in (("w1", shared.gate_proj), ("w3", shared.up_proj), ("w2", shared.down_proj)):
            handles.append(
                module.register_forward_pre_hook(shared_hook(f"layers.{number}.shared_experts.{matrix}"))
            )
    forward()
    for handle in handles:
        handle.remove()
    return {name: max(float(value), _LEAST_AMAX) for name, value in measured.items()}
