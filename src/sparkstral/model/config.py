"""The model's constants, by their Hugging Face names.

Owns the shape of the network; must not know files or their names (checkpoint/ reads them into a
`ModelConfig`). Source: docs/model.md (params.json of Mistral-Small-4-119B-2603-NVFP4).
"""

from __future__ import annotations

from dataclasses import dataclass

QK_NOPE_HEAD_DIM = 64
QK_ROPE_HEAD_DIM = 64
V_HEAD_DIM = 128
KV_LORA_RANK = 256
NUM_EXPERTS_PER_TOK = 4
LATENT_WIDTH = KV_LORA_RANK + QK_ROPE_HEAD_DIM  # what the cache holds for a token and layer
SOFTMAX_SCALE = (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM) ** -0.5  # no YaRN mscale², no 320^-0.5


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes that differ between the real model and the demo; what never differs is a constant above."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    num_attention_heads: int
    q_lora_rank: int
    n_routed_experts: int
    moe_intermediate_size: int
    n_shared_experts: int
    rms_norm_eps: float
    rope_theta: float
    rope_factor: float  # YaRN
    rope_beta_fast: float
    rope_beta_slow: float
    original_max_position_embeddings: int
    llama_4_scaling_beta: float
    llama_4_original_max_position_embeddings: int
    max_position_embeddings: int
    routed_scaling_factor: float = 1.0
