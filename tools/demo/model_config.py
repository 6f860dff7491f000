"""The demo's shape, in both spellings: params.json (native) and Mistral4Config (transformers).

Owns the numbers of the demo model; must not know weights. Source of the keys: docs/model.md, configuration
section.
"""

from __future__ import annotations

from typing import Any

from transformers import Mistral4Config

HIDDEN_SIZE = 384
NUM_LAYERS = 6
NUM_HEADS = 6
Q_LORA_RANK = 256
KV_LORA_RANK = 256
QK_NOPE_HEAD_DIM = 64
QK_ROPE_HEAD_DIM = 64
V_HEAD_DIM = 128
NUM_EXPERTS = 16
NUM_EXPERTS_PER_TOK = 4
MOE_INTERMEDIATE_SIZE = 192
VOCAB_SIZE = 8192
ORIGINAL_MAX_POSITION_EMBEDDINGS = 1024
YARN_FACTOR = 16
MAX_POSITION_EMBEDDINGS = ORIGINAL_MAX_POSITION_EMBEDDINGS * YARN_FACTOR
ROPE_THETA = 10000.0
YARN_BETA_FAST = 32
YARN_BETA_SLOW = 1
LLAMA_4_SCALING_BETA = 0.1
NORM_EPS = 1e-6
SOFTMAX_SCALE = (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM) ** -0.5


def hf_config() -> Mistral4Config:
    """The config under which transformers computes what params.json says.

    attention_factor 1 without mscale_all_dim is apply_scale false: cos and sin keep magnitude 1 and the
    softmax scale stays 128^-0.5. Spelled with mscale_all_dim 1, transformers 5.9 and later multiply that
    scale.
    """
    return Mistral4Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=MOE_INTERMEDIATE_SIZE,
        moe_intermediate_size=MOE_INTERMEDIATE_SIZE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        n_shared_experts=1,
        n_routed_experts=NUM_EXPERTS,
        num_experts_per_tok=NUM_EXPERTS_PER_TOK,
        q_lora_rank=Q_LORA_RANK,
        kv_lora_rank=KV_LORA_RANK,
        qk_nope_head_dim=QK_NOPE_HEAD_DIM,
        qk_rope_head_dim=QK_ROPE_HEAD_DIM,
        v_head_dim=V_HEAD_DIM,
        max_position_embeddings=MAX_POSITION_EMBEDDINGS,
        rms_norm_eps=NORM_EPS,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": ROPE_THETA,
            "factor": float(YARN_FACTOR),
            "original_max_position_embeddings": ORIGINAL_MAX_POSITION_EMBEDDINGS,
            "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
            "beta_fast": float(YARN_BETA_FAST),
            "beta_slow": float(YARN_BETA_SLOW),
            "attention_factor": 1.0,
            "llama_4_scaling_beta": LLAMA_4_SCALING_BETA,
        },
    )


def native_params() -> dict[str, Any]:
    """params.json of the demo: the keys of the released NVFP4 checkpoint, without vision_encoder."""
    fp4: dict[str, Any] = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "group_size": 16,
        "strategy": "tensor_group",
        "block_structure": None,
        "actorder": None,
        "scale_dtype": "torch.float8_e4m3fn",
        "zp_dtype": None,
        "observer_kwargs": {},
    }
    return {
        "dim": HIDDEN_SIZE,
        "n_layers": NUM_LAYERS,
        "head_dim": QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM,
        "hidden_dim": MOE_INTERMEDIATE_SIZE,
        "n_heads": NUM_HEADS,
        "n_kv_heads": NUM_HEADS,
        "rope_theta": ROPE_THETA,
        "norm_eps": NORM_EPS,
        "vocab_size": VOCAB_SIZE,
        "tied_embeddings": False,
        "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
        "llama_4_scaling": {
            "original_max_position_embeddings": ORIGINAL_MAX_POSITION_EMBEDDINGS,
            "beta": LLAMA_4_SCALING_BETA,
        },
        "q_lora_rank": Q_LORA_RANK,
        "qk_rope_head_dim": QK_ROPE_HEAD_DIM,
        "qk_nope_head_dim": QK_NOPE_HEAD_DIM,
        "kv_lora_rank": KV_LORA_RANK,
        "v_head_dim": V_HEAD_DIM,
        "yarn": {
            "original_max_position_embeddings": ORIGINAL_MAX_POSITION_EMBEDDINGS,
            "factor": YARN_FACTOR,
            "apply_scale": False,
            "beta": YARN_BETA_FAST,
            "alpha": YARN_BETA_SLOW,
        },
        "moe": {
            "expert_parallel": 1,
            "expert_model_parallel": 1,
            "route_every_n": 1,
            "first_k_dense_replace": 0,
            "num_experts": NUM_EXPERTS,
            "num_experts_per_tok": NUM_EXPERTS_PER_TOK,
            "num_expert_groups": 1,
            "num_expert_groups_per_tok": 1,
            "routed_scale": 1.0,
            "expert_hidden_dim": MOE_INTERMEDIATE_SIZE,
            "num_shared_experts": 1,
        },
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "version": "0.13.0",
            "format": "nvfp4-pack-quantized",
            "global_compression_ratio": None,
            "kv_cache_scheme": None,
            "sparsity_config": {},
            "transform_config": {},
            "config_groups": {
                "NVFP4A16": {
                    "format": "nvfp4-pack-quantized",
                    "targets": ["Linear"],
                    "output_activations": None,
                    "weights": {**fp4, "dynamic": False, "observer": "memoryless_minmax"},
                    "input_activations": {**fp4, "dynamic": "local", "observer": "static_minmax"},
                }
            },
            "ignore": [
                "model.embed_tokens",
                "re:.*kv_a_proj_with_mqa$",
                "re:.*q_a_proj$",
                "re:.*gate$",
                "re:.*self_attn.*",
                "re:.*attention.*",
                "lm_head",
            ],
        },
    }
