"""What a step of the model must move and compute, from its constants alone: floors, and shares of bandwidth.

Source: docs/model.md, budgets. Experts are NVFP4, the rest bfloat16 or as a caller says; routing taken as uniform. Must
not know tensors: the plan reads it too.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkstral.model.config import (
    KV_LORA_RANK,
    LATENT_WIDTH,
    NUM_EXPERTS_PER_TOK,
    PATCH_WIDTH,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    V_HEAD_DIM,
    ModelConfig,
)

NVFP4_BYTES = 0.5625  # a code and a sixteenth of a scale
BF16_BYTES = 2


def attention_parameters(config: ModelConfig) -> int:
    """Of one layer."""
    hidden, heads, query = config.hidden_size, config.num_attention_heads, config.q_lora_rank
    return (
        query * hidden
        + heads * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM) * query
        + LATENT_WIDTH * hidden
        + heads * (QK_NOPE_HEAD_DIM + V_HEAD_DIM) * KV_LORA_RANK
        + hidden * heads * V_HEAD_DIM
    )


def expert_parameters(config: ModelConfig) -> int:
    return 3 * config.hidden_size * config.moe_intermediate_size


def distinct_experts(config: ModelConfig, num_tokens: int) -> float:
    """Routed experts of a layer that `num_tokens` tokens use together, if each is equally likely."""
    experts = config.n_routed_experts
    return float(experts * (1 - (1 - NUM_EXPERTS_PER_TOK / experts) ** num_tokens))


def step_bytes(
    config: ModelConfig,
    num_tokens: int,
    context_tokens: int,
    *,
    dense_bytes: int = BF16_BYTES,
    kv_bytes_per_token: int | None = None,
) -> float:
    """Read by one decode step of `num_tokens` requests with `context_tokens` in the cache in all. `dense_bytes` is of a
    weight of attention and head, `kv_bytes_per_token` of all layers; None: latents in bfloat16."""
    layers = config.num_hidden_layers
    if kv_bytes_per_token is None:
        kv_bytes_per_token = layers * LATENT_WIDTH * BF16_BYTES
    layer = (
        dense_bytes * attention_parameters(config)
        + BF16_BYTES * config.n_routed_experts * config.hidden_size
        + NVFP4_BYTES * expert_parameters(config) * (1 + distinct_experts(config, num_tokens))
    )
    head = dense_bytes * config.vocab_size * config.hidden_size
    return layers * layer + head + kv_bytes_per_token * context_tokens


def prefill_flops(config: ModelConfig, num_tokens: int) -> float:
    """Of a prompt: products with weights, attention in its expanded form, and one row of logits."""
    experts = (1 + NUM_EXPERTS_PER_TOK) * expert_parameters(config)
    router = config.n_routed_experts * config.hidden_size
    pairs = num_tokens * (num_tokens + 1) / 2
    attention = pairs * config.num_attention_heads * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM + V_HEAD_DIM)
    layer = num_tokens * (attention_parameters(config) + experts + router) + attention
    return 2 * (config.num_hidden_layers * layer + config.vocab_size * config.hidden_size)


def encoder_flops(config: ModelConfig, grids: Sequence[tuple[int, int]]) -> float:
    """Of images with these rows and columns of patches: encoder, attention within each, and projector."""
    vision = config.vision
    if vision is None:
        return 0.0
    hidden, layers = vision.hidden_size, vision.num_hidden_layers
    of_patch = PATCH_WIDTH * hidden + layers * (4 * hidden**2 + 3 * hidden * vision.intermediate_size)
    of_embedding = 4 * hidden**2 + hidden * config.hidden_size + config.hidden_size**2
    flops = 0.0
    for rows, columns in grids:
        patches = rows * columns
        flops += 2 * (patches * of_patch + layers * 2 * hidden * patches**2 + patches / 4 * of_embedding)
    return flops
