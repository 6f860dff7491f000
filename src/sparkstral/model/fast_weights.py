"""The parameters of a layer as the Triton kernels read them.

Owns the conversion, in place where bytes are many: the experts' codes are reordered where they lie, so the weights
that come in are not to be read by anyone else afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkstral.errors import ConfigError
from sparkstral.kernels.fp8_quantize import Fp8Rows
from sparkstral.kernels.moe_experts.triton_w4a4 import InputScales
from sparkstral.kernels.nvfp4_linear.packing import PackedWeight
from sparkstral.kernels.nvfp4_linear.triton_kernel import reorder_
from sparkstral.model.linear import to_dense, to_fp8, to_precision
from sparkstral.model.mla import split_kv_b_proj
from sparkstral.model.weights import InputGlobalScales, LayerWeights, Nvfp4Weight
from sparkstral.types import Precision

Matrix = Tensor | Fp8Rows

NOT_STACKED = (
    "The experts of this checkpoint are not NVFP4, which is what the Triton kernels read. Use the NVFP4 release, or "
    "--kernels reference, which decodes any form to plain tensors: many times slower, and in four times the memory."
)


@dataclass(frozen=True, slots=True)
class FastLayerWeights:
    attention_norm: Tensor  # [H]
    a_proj: Matrix  # [Q + 320, H]: q_a, then kv_a; both read the same input
    q_a_norm: Tensor  # [Q]
    kv_a_norm: Tensor  # [256]
    q_b_proj: Matrix  # [N * 128, Q]
    kv_b_proj: Tensor  # [N * 192, 256]: for the expanded form; never in FP8, but with the same numbers
    w_uk: Matrix  # [N, 64, 256]: its rows for the absorbed form
    w_uv: Matrix  # [N, 128, 256]
    o_proj: Matrix  # [H, N * 128]
    ffn_norm: Tensor  # [H]
    router: Tensor  # [E, H]
    gate_up: PackedWeight  # [E + 1, 2I, H], the shared expert last
    down: PackedWeight  # [E + 1, H, I]
    input_scales: InputScales | None  # then prompts' tokens are quantised for the routed experts

    @classmethod
    def of(
        cls, weights: LayerWeights, num_heads: int, device: torch.device, dtype: torch.dtype, dense: Precision
    ) -> FastLayerWeights:
        """Takes the experts' memory over. `dense`: how the attention's projections are held. Raises ConfigError for
        experts that are not NVFP4."""
        if weights.stacked is None:
            raise ConfigError(NOT_STACKED)
        attention = weights.attention
        kv_b_proj = to_precision(attention.kv_b_proj, device, dtype, dense)
        w_uk, w_uv = split_kv_b_proj(kv_b_proj, num_heads)
        return cls(
            attention_norm=weights.attention_norm.to(device, dtype),
            a_proj=as_held(
                torch.cat((to_dense(attention.q_a_proj, device, dtype), to_dense(attention.kv_a_proj, device, dtype))),
                dense,
            ),
            q_a_norm=attention.q_a_norm.to(device, dtype),
            kv_a_norm=attention.kv_a_norm.to(device, dtype),
            q_b_proj=as_held(to_dense(attention.q_b_proj, device, dtype), dense),
            kv_b_proj=kv_b_proj,
            w_uk=as_held(w_uk, dense),
            w_uv=as_held(w_uv, dense),
            o_proj=as_held(to_dense(attention.o_proj, device, dtype), dense),
            ffn_norm=weights.ffn_norm.to(device, dtype),
            router=weights.router.to(device, dtype),
            gate_up=_take(weights.stacked.gate_up),
            down=_take(weights.stacked.down),
            input_scales=_input_scales(weights.input_scales, device),
        )


def as_held(weight: Tensor, precision: Precision) -> Matrix:
    return weight if precision == "bf16" else to_fp8(weight)


def memory_of(weight: Matrix) -> Tensor:
    """What is read of it first, as bytes to bring nearer; bfloat16, so that kernels have one variant for it."""
    return weight if isinstance(weight, Tensor) else weight.codes.view(torch.bfloat16)


def _input_scales(scales: InputGlobalScales | None, device: torch.device) -> InputScales | None:
    if scales is None:
        return None
    return InputScales(torch.minimum(scales.gate, scales.up).to(device), scales.down.to(device))


def _take(weight: Nvfp4Weight) -> PackedWeight:
    return PackedWeight(reorder_(weight.packed), weight.scale, 1 / weight.global_scale)
