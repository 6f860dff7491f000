"""The network's parameters as tensors in the form in which the model reads them.

Owns the names and shapes inside the engine; must not know files (checkpoint/ fills these in). H hidden_size,
Q q_lora_rank, N heads, E routed experts, I moe_intermediate_size, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """A matrix as it is: [..., N, K], bfloat16 or float32."""

    weight: Tensor


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """weight [..., N, K] float8_e4m3fn times scale (float32, [...] one for each matrix)."""

    weight: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class Nvfp4Weight:
    """packed [..., N, K/2] uint8 (low nibble = even column), scale [..., N, K/16] float8_e4m3fn,
    global_scale [...] float32, a divisor: W = e2m1(code) * scale / global_scale."""

    packed: Tensor
    scale: Tensor
    global_scale: Tensor


Weight = DenseWeight | Fp8Weight | Nvfp4Weight


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    q_a_proj: Weight  # [Q, H]
    q_a_norm: Tensor  # [Q]
    q_b_proj: Weight  # [N * 128, Q]: each head's 64 nope rows, then its 64 rope rows (interleaved pairs)
    kv_a_proj: Weight  # [320, H]: 256 latent rows, then 64 rope rows
    kv_a_norm: Tensor  # [256]
    kv_b_proj: Weight  # [N * 192, 256]: each head's 64 k_nope rows, then its 128 v rows
    o_proj: Weight  # [H, N * 128]


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """gate and up [E, I, H], down [E, H, I] of the routed experts; without E of the shared."""

    gate: Weight  # w1
    up: Weight  # w3
    down: Weight  # w2


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """All experts of a layer, NVFP4, in one storage; the shared expert is expert E.

    gate_up: packed [E+1, 2I, H/2], scale [E+1, 2I, H/16] (the gate's rows, then up's), global_scale [E+1, 2].
    down: packed [E+1, H, I/2], scale [E+1, H, I/16], global_scale [E+1].
    """

    gate_up: Nvfp4Weight
    down: Nvfp4Weight


@dataclass(frozen=True, slots=True)
class InputGlobalScales:
    """Of what the routed experts' matrices are multiplied with, where that is quantised too: [E] float32, divisors."""

    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor  # [H]
    attention: AttentionWeights
    ffn_norm: Tensor  # [H]
    router: Tensor  # [E, H]
    experts: ExpertWeights
    shared_expert: ExpertWeights
    stacked: StackedExperts | None = None  # where all experts are NVFP4: the two fields above are views of it
    input_scales: InputGlobalScales | None = None  # where they were asked for


@dataclass(frozen=True, slots=True)
class VisionLayerWeights:
    """D vision hidden_size, I vision intermediate_size."""

    attention_norm: Tensor  # [D]
    q_proj: Tensor  # [D, D]: each head's 64 rows in pairs that turn together, as k_proj's
    k_proj: Tensor
    v_proj: Tensor
    o_proj: Tensor
    ffn_norm: Tensor  # [D]
    gate: Tensor  # [I, D]
    up: Tensor  # [I, D]
    down: Tensor  # [D, I]


@dataclass(frozen=True, slots=True)
class VisionWeights:
    """The vision encoder and its projector; nothing of them is ever quantized."""

    patch_conv: Tensor  # [D, 3, 14, 14]
    ln_pre: Tensor  # [D]
    layers: tuple[VisionLayerWeights, ...]
    projector_norm: Tensor  # [D]
    merging_layer: Tensor  # [D, 4 * D]: input channel * 4 + row * 2 + column of the four patches
    linear_1: Tensor  # [H, D]
    linear_2: Tensor  # [H, H]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embed_tokens: Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [H]
    lm_head: Weight  # [V, H]
    vision: VisionWeights | None = None
