"""The places that a checkpoint has to fill: every tensor of `ModelWeights`, by name, with its shape.

Owns the shapes that follow from a `ModelConfig`; must not know what any file calls these tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparkstral.model.config import (
    KV_LORA_RANK,
    LATENT_WIDTH,
    NUM_CHANNELS,
    PATCH_SIZE,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    SPATIAL_MERGE_SIZE,
    V_HEAD_DIM,
    ModelConfig,
    VisionConfig,
)


class TensorClass(StrEnum):
    """What a tensor is part of, for tables of sizes."""

    ROUTED_EXPERTS = "routed experts"
    SHARED_EXPERTS = "shared experts"
    ATTENTION = "attention"  # the two latent norms included
    ROUTERS = "routers"
    NORMS = "layer and final norms"
    EMBEDDING = "token embedding"
    HEAD = "output head"
    VISION = "vision and projector"
    ACTIVATION_SCALES = "activation scales"


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in `ModelWeights`. `name` is its path there: "norm", "layers.3.experts.gate"."""

    name: str
    shape: tuple[int, ...]
    tensor_class: TensorClass
    may_be_quantized: bool


def list_slots(config: ModelConfig) -> list[Slot]:
    """Every place that must be filled, in the order in which the model uses them."""
    hidden, vocab = config.hidden_size, config.vocab_size
    return [
        Slot("embed_tokens", (vocab, hidden), TensorClass.EMBEDDING, False),
        *(
            slot
            for layer in range(config.num_hidden_layers)
            for slot in _layer_slots(config, f"layers.{layer}.")
        ),
        Slot("norm", (hidden,), TensorClass.NORMS, False),
        Slot("lm_head", (vocab, hidden), TensorClass.HEAD, True),
        *(_vision_slots(config.vision, hidden) if config.vision else ()),
    ]


def _vision_slots(vision: VisionConfig, text_hidden: int) -> list[Slot]:
    hidden, width = vision.hidden_size, vision.intermediate_size
    rows: list[tuple[str, tuple[int, ...]]] = [
        ("patch_conv", (hidden, NUM_CHANNELS, PATCH_SIZE, PATCH_SIZE)),
        ("ln_pre", (hidden,)),
    ]
    for layer in range(vision.num_hidden_layers):
        prefix = f"layers.{layer}."
        rows += [(prefix + norm, (hidden,)) for norm in ("attention_norm", "ffn_norm")]
        rows += [(prefix + matrix, (hidden, hidden)) for matrix in ("q_proj", "k_proj", "v_proj", "o_proj")]
        rows += [(prefix + matrix, (width, hidden)) for matrix in ("gate", "up")]
        rows.append((prefix + "down", (hidden, width)))
    rows += [
        ("projector_norm", (hidden,)),
        ("merging_layer", (hidden, SPATIAL_MERGE_SIZE**2 * hidden)),
        ("linear_1", (text_hidden, hidden)),
        ("linear_2", (text_hidden, text_hidden)),
    ]
    return [Slot("vision." + name, shape, TensorClass.VISION, False) for name, shape in rows]


def _layer_slots(config: ModelConfig, prefix: str) -> list[Slot]:
    hidden, heads, q_rank = config.hidden_size, config.num_attention_heads, config.q_lora_rank
    experts, width = config.n_routed_experts, config.moe_intermediate_size
    attention, routed, shared = TensorClass.ATTENTION, TensorClass.ROUTED_EXPERTS, TensorClass.SHARED_EXPERTS
    rows: list[tuple[str, tuple[int, ...], TensorClass, bool]] = [
        ("attention_norm", (hidden,), TensorClass.NORMS, False),
        ("attention.q_a_proj", (q_rank, hidden), attention, True),
        ("attention.q_a_norm", (q_rank,), attention, False),
        ("attention.q_b_proj", (heads * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM), q_rank), attention, True),
        ("attention.kv_a_proj", (LATENT_WIDTH, hidden), attention, True),
        ("attention.kv_a_norm", (KV_LORA_RANK,), attention, False),
        ("attention.kv_b_proj", (heads * (QK_NOPE_HEAD_DIM + V_HEAD_DIM), KV_LORA_RANK), attention, True),
        ("attention.o_proj", (hidden, heads * V_HEAD_DIM), attention, True),
        ("ffn_norm", (hidden,), TensorClass.NORMS, False),
        ("router", (experts, hidden), TensorClass.ROUTERS, False),
        ("experts.gate", (experts, width, hidden), routed, True),
        ("experts.up", (experts, width, hidden), routed, True),
        ("experts.down", (experts, hidden, width), routed, True),
        ("shared_expert.gate", (width, hidden), shared, True),
        ("shared_expert.up", (width, hidden), shared, True),
        ("shared_expert.down", (hidden, width), shared, True),
    ]
    return [
        Slot(prefix + name, shape, tensor_class, quantized) for name, shape, tensor_class, quantized in rows
    ]
