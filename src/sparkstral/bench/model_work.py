"""What a step of the model must move and compute, from its constants alone: floors, and shares of bandwidth.

Source: docs/model.md, budgets. Experts are NVFP4, the rest bfloat16 or as `Held` says; routing taken as uniform.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkstral.kv_cache.layout import KvLayout
from sparkstral.model.config import (
    KV_LORA_RANK,
    LATENT_WIDTH,
    NUM_EXPERTS_PER_TOK,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    V_HEAD_DIM,
    ModelConfig,
)
from sparkstral.types import Precision

NVFP4_BYTES = 0.5625  # a code and a sixteenth of a scale
BF16_BYTES = 2
_BYTES = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Held:
    """How an engine holds what it could hold in either."""

    dense: Precision = "bf16"  # attention's projections but kv_b_proj, and the head
    kv: Precision = "bf16"

    @property
    def latent_bytes(self) -> int:
        """Of a token in a layer."""
        return KvLayout.of(self.kv, 1, BF16_BYTES, 1).bytes_per_token


AS_STORED = Held()


def projection_parameters(config: ModelConfig) -> int:
    """Of one layer's attention, without those that go between latents and heads."""
    hidden, heads, query = config.hidden_size, config.num_attention_heads, config.q_lora_rank
    return (
        query * hidden
        + heads * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM) * query
        + LATENT_WIDTH * hidden
        + hidden * heads * V_HEAD_DIM
    )


def absorbed_parameters(config: ModelConfig) -> int:
    """kv_b_proj of one layer: w_uk and w_uv."""
    return config.num_attention_heads * (QK_NOPE_HEAD_DIM + V_HEAD_DIM) * KV_LORA_RANK


def attention_parameters(config: ModelConfig) -> int:
    """Of one layer."""
    return projection_parameters(config) + absorbed_parameters(config)


def expert_parameters(config: ModelConfig) -> int:
    return 3 * config.hidden_size * config.moe_intermediate_size


def distinct_experts(config: ModelConfig, num_tokens: int) -> float:
    """Routed experts of a layer that `num_tokens` tokens use together, if each is equally likely."""
    experts = config.n_routed_experts
    return float(experts * (1 - (1 - NUM_EXPERTS_PER_TOK / experts) ** num_tokens))


def step_bytes(config: ModelConfig, num_tokens: int, context_tokens: int, held: Held = AS_STORED) -> float:
    """Read by one decode step of `num_tokens` requests with `context_tokens` in the cache in all."""
    dense = _BYTES[held.dense]  # the scales of rows are a thousandth
    layer = (
        dense * projection_parameters(config)
        + BF16_BYTES * (absorbed_parameters(config) + config.n_routed_experts * config.hidden_size)
        + NVFP4_BYTES * expert_parameters(config) * (1 + distinct_experts(config, num_tokens))
        + held.latent_bytes * context_tokens
    )
    return config.num_hidden_layers * layer + dense * config.vocab_size * config.hidden_size


def prefill_flops(config: ModelConfig, num_tokens: int) -> float:
    """Of a prompt: products with weights, attention in its expanded form, and one row of logits."""
    experts = (1 + NUM_EXPERTS_PER_TOK) * expert_parameters(config)
    router = config.n_routed_experts * config.hidden_size
    pairs = num_tokens * (num_tokens + 1) / 2
    attention = pairs * config.num_attention_heads * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM + V_HEAD_DIM)
    layer = num_tokens * (attention_parameters(config) + experts + router) + attention
    return 2 * (config.num_hidden_layers * layer + config.vocab_size * config.hidden_size)
