"""The model in training: float32 master weights, and the BF16 and NVFP4 roundings of them that compute.

Owns the pairing of the two: before a step the working model is made from the masters exactly as the export
would make it (experts through NVFP4, all else through BF16), after it the gradients go straight through to
the masters. So what is trained is what is shipped. Must not know data or schedules.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import Mistral4ForCausalLM

from tools.demo import model_config as shape
from tools.demo.quantise import round_to_nvfp4

GATE_UP_OF_LAYER = 2 * (shape.NUM_EXPERTS + 1)  # w1, w3 of each routed expert, then of the shared one
DOWN_OF_LAYER = shape.NUM_EXPERTS + 1
FLAT = ("matrices", "vectors")  # masters that are no stack of matrices of one kind


class _BalanceGradient(torch.autograd.Function):
    """Passes the routing weights through and adds the gradient of the load-balance loss to the router's
    logits.

    Loss: coefficient * E * sum_e f_e P_e, with f_e the share of the choices that fell on expert e and P_e its
    mean probability (Switch Transformer, equation 4, for top-k).
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        weights: Tensor,
        logits: Tensor,
        chosen: Tensor,
        coefficient: float,
    ) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(logits, chosen)
        ctx.coefficient = coefficient  # type: ignore[attr-defined]
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        # type: ignore[override]
        logits, chosen = ctx.saved_tensors  # type: ignore[attr-defined]
        num_tokens, num_experts = logits.shape
        probabilities = logits.float().softmax(-1)
        share = torch.zeros_like(probabilities).scatter_(1, chosen, 1.0 / chosen.shape[1]).mean(0)
        centred = share - (probabilities * share).sum(-1, keepdim=True)
        slope = ctx.coefficient * num_experts / num_tokens  # type: ignore[attr-defined]
        return grad, (slope * probabilities * centred).to(logits.dtype), None, None


def _balance(
    coefficient: float,
) -> Callable[[nn.Module, tuple[Tensor, ...], tuple[Tensor, Tensor, Tensor]], tuple[Tensor, Tensor, Tensor]]:
    def hook(
        _: nn.Module, __: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, chosen = output
        weights = _BalanceGradient.apply(weights, logits, chosen, coefficient)  # type: ignore[no-untyped-call]
        return logits, weights, chosen

    return hook


class WorkingModel:
    """`model` computes in `dtype`; `masters` are what the optimiser moves.

    masters: "gate_up" [layers * 34, 192, 384], "down" [layers * 17, 384, 192], each projection of the attention
    [layers, N, K]; "matrices" (embedding, head, routers) and "vectors" flat.
    """

    def __init__(self, model: Mistral4ForCausalLM, dtype: torch.dtype) -> None:
        check_scaling(model)
        self.model = model
        self._members: list[tuple[nn.Parameter, str, int]] = []  # parameter, its master, its offset there
        parts: dict[str, list[Tensor]] = {}
        sizes: dict[str, int] = {}
        for parameter, name in _in_master_order(model):
            self._members.append((parameter, name, sizes.setdefault(name, 0)))
            parts.setdefault(name, []).append(parameter.detach().float().flatten())
            sizes[name] += parameter.numel()
        flat = {name: torch.cat(tensors) for name, tensors in parts.items()}
        for parameter, name, _ in self._members:
            if name not in FLAT:
                flat[name] = flat[name].view(-1, *parameter.shape[-2:])
        flat["gate_up"] = flat["gate_up"].view(-1, shape.MOE_INTERMEDIATE_SIZE, shape.HIDDEN_SIZE)
        self.masters = {name: nn.Parameter(tensor) for name, tensor in flat.items()}
        self._working = {name: torch.empty_like(tensor, dtype=dtype) for name, tensor in flat.items()}
        for name, master in self.masters.items():
            master.grad = torch.zeros_like(master)
            self._working[name].copy_(flat[name])
        for parameter, name, offset in self._members:
            view = self._working[name].view(-1)[offset : offset + parameter.numel()]
            parameter.data = view.view(parameter.shape)

    def balance_experts(self, coefficient: float) -> None:
        """Add the load-balance gradient to every router."""
        for layer in self.model.model.layers:
            layer.mlp.gate.register_forward_hook(_balance(coefficient))

    @torch.no_grad()
    def refresh(self, quantised: bool = True) -> None:
        """Make the computing weights from the masters; `quantised` sends the experts through NVFP4."""
        for name, master in self.masters.items():
            through_fp4 = quantised and name in ("gate_up", "down")
            self._working[name].copy_(round_to_nvfp4(master) if through_fp4 else master)

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Move the gradients of the computing weights to the masters."""
        for parameter, name, offset in self._members:
            master_grad = self.masters[name].grad
            if master_grad is None or parameter.grad is None:
                raise RuntimeError("collect_gradients() is called after backward().")
            master_grad.view(-1)[offset : offset + parameter.numel()].copy_(parameter.grad.view(-1))
            parameter.grad = None

    @torch.no_grad()
    def master_state(self) -> dict[str, Tensor]:
        """The masters under the model's own parameter names, float32."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return {
            names[id(parameter)]: self.masters[name]
            .view(-1)[offset : offset + parameter.numel()]
            .view(parameter.shape)
            for parameter, name, offset in self._members
        }


def check_scaling(model: Mistral4ForCausalLM) -> None:
    """Raise ValueError unless every layer's softmax scale is 128^-0.5 and RoPE's magnitude 1."""
    scales = {layer.self_attn.scaling for layer in model.model.layers}
    if scales != {shape.SOFTMAX_SCALE} or model.model.rotary_emb.attention_scaling != 1.0:
        raise ValueError(f"Softmax scales are {scales}, and Mistral Small 4 has {shape.SOFTMAX_SCALE} alone.")


def _in_master_order(model: Mistral4ForCausalLM) -> list[tuple[nn.Parameter, str]]:
    """Every parameter with its master's name, layer by layer; experts routed before shared, gate before up."""
    ordered = []
    for layer in model.model.layers:
        shared = layer.mlp.shared_experts
        ordered += [(layer.mlp.experts.gate_up_proj, "gate_up")]
        ordered += [(shared.gate_proj.weight, "gate_up"), (shared.up_proj.weight, "gate_up")]
        ordered += [(layer.mlp.experts.down_proj, "down"), (shared.down_proj.weight, "down")]
        attention = layer.self_attn.named_parameters()
        ordered += [(parameter, name) for name, parameter in attention if parameter.dim() == 2]
    stacked = {id(parameter) for parameter, _ in ordered}
    for parameter in model.parameters():
        if id(parameter) not in stacked:
            ordered.append((parameter, "matrices" if parameter.dim() > 1 else "vectors"))
    return ordered
