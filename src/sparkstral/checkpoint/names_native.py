"""The native layout: what params.json says, and what the tensors of consolidated*.safetensors are called.

Owns the model makers' own names; nothing outside this file uses them.
Source: docs/model.md sections 1.1 and 3.2.
"""

from __future__ import annotations

from pathlib import Path

from sparkstral.checkpoint.config_file import Section, read_json_object
from sparkstral.checkpoint.naming import Naming, Source, skipped_vision
from sparkstral.model.config import (
    IMAGE_BREAK_TOKEN_ID,
    IMAGE_END_TOKEN_ID,
    IMAGE_TOKEN_ID,
    KV_LORA_RANK,
    N_SHARED_EXPERTS,
    NUM_CHANNELS,
    NUM_EXPERTS_PER_TOK,
    PATCH_SIZE,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    ROUTED_SCALING_FACTOR,
    SPATIAL_MERGE_SIZE,
    V_HEAD_DIM,
    VISION_HEAD_DIM,
    ModelConfig,
    VisionConfig,
)

_TOP_NAMES = {"embed_tokens": "tok_embeddings", "norm": "norm", "lm_head": "output"}
_LAYER_NAMES = {
    "attention_norm": "attention_norm",
    "attention.q_a_proj": "attention.wq_a",
    "attention.q_a_norm": "attention.q_a_norm",
    "attention.q_b_proj": "attention.wq_b",
    "attention.kv_a_proj": "attention.wkv_a_with_mqa",
    "attention.kv_a_norm": "attention.kv_a_norm",
    "attention.kv_b_proj": "attention.wkv_b",
    "attention.o_proj": "attention.wo",
    "ffn_norm": "ffn_norm",
    "router": "gate",
    "shared_expert.gate": "shared_experts.w1",
    "shared_expert.up": "shared_experts.w3",
    "shared_expert.down": "shared_experts.w2",
}
_EXPERT_NAMES = {"experts.gate": "w1", "experts.up": "w3", "experts.down": "w2"}
_VISION_NAMES = {
    "patch_conv": "vision_encoder.patch_conv",
    "ln_pre": "vision_encoder.ln_pre",
    "projector_norm": "pre_mm_projector_norm",
    "merging_layer": "patch_merger.merging_layer",
    "linear_1": "vision_language_adapter.w_in",
    "linear_2": "vision_language_adapter.w_out",
}
_VISION_LAYER_NAMES = {
    "attention_norm": "attention_norm",
    "q_proj": "attention.wq",
    "k_proj": "attention.wk",
    "v_proj": "attention.wv",
    "o_proj": "attention.wo",
    "ffn_norm": "ffn_norm",
    "gate": "feed_forward.w1",
    "up": "feed_forward.w3",
    "down": "feed_forward.w2",
}
_VISION_PREFIXES = ("vision_encoder.", "vision_language_adapter.", "patch_merger.", "pre_mm_projector_norm.")


def read_params(path: Path) -> ModelConfig:
    """The configuration in a params.json.

    Raises `CheckpointError` for a key that is missing, mistyped or unknown, or tells of another network.
    """
    params = Section(path, read_json_object(path))
    yarn = params.section("yarn")
    llama_4_scaling = params.section("llama_4_scaling")
    moe = params.section("moe")
    config = ModelConfig(
        hidden_size=params.integer("dim"),
        num_hidden_layers=params.integer("n_layers"),
        vocab_size=params.integer("vocab_size"),
        num_attention_heads=params.integer("n_heads"),
        q_lora_rank=params.integer("q_lora_rank"),
        n_routed_experts=moe.integer("num_experts", minimum=NUM_EXPERTS_PER_TOK),
        moe_intermediate_size=moe.integer("expert_hidden_dim"),
        rms_norm_eps=params.number("norm_eps"),
        rope_theta=params.number("rope_theta"),
        rope_factor=yarn.number("factor"),
        rope_beta_fast=yarn.number("beta"),
        rope_beta_slow=yarn.number("alpha"),
        original_max_position_embeddings=yarn.integer("original_max_position_embeddings"),
        llama_4_scaling_beta=llama_4_scaling.number("beta"),
        llama_4_original_max_position_embeddings=llama_4_scaling.integer("original_max_position_embeddings"),
        max_position_embeddings=params.integer("max_position_embeddings"),
        vision=_read_vision(params.section("vision_encoder")) if "vision_encoder" in params else None,
    )
    params.constants(
        {
            "head_dim": QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM,
            "n_kv_heads": config.num_attention_heads,
            "kv_lora_rank": KV_LORA_RANK,
            "qk_nope_head_dim": QK_NOPE_HEAD_DIM,
            "qk_rope_head_dim": QK_ROPE_HEAD_DIM,
            "v_head_dim": V_HEAD_DIM,
            "tied_embeddings": False,
        }
    )
    moe.constants(
        {
            "num_experts_per_tok": NUM_EXPERTS_PER_TOK,
            "num_shared_experts": N_SHARED_EXPERTS,
            "routed_scale": ROUTED_SCALING_FACTOR,
            "first_k_dense_replace": 0,
            "route_every_n": 1,
            "num_expert_groups": 1,
            "num_expert_groups_per_tok": 1,
        }
    )
    yarn.constants({"apply_scale": False})
    # hidden_dim is the width of dense layers, of which there are none; how experts were spread over devices
    # in training does not matter here; how weights are quantized is seen in the tensors themselves (plan).
    params.ignore("hidden_dim", "quantization_config", "quantization")
    moe.ignore("expert_parallel", "expert_model_parallel")
    for section in (params, yarn, llama_4_scaling, moe):
        section.finish()
    return config


def _read_vision(vision: Section) -> VisionConfig:
    config = VisionConfig(
        hidden_size=vision.integer("hidden_size"),
        num_hidden_layers=vision.integer("num_hidden_layers"),
        num_attention_heads=vision.integer("num_attention_heads"),
        intermediate_size=vision.integer("intermediate_size"),
        max_image_size=vision.integer("max_image_size", minimum=PATCH_SIZE * SPATIAL_MERGE_SIZE),
        rope_theta=vision.number("rope_theta"),
    )
    vision.constants(
        {
            "hidden_size": config.num_attention_heads * VISION_HEAD_DIM,
            "num_channels": NUM_CHANNELS,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": SPATIAL_MERGE_SIZE,
            "mm_projector_id": "patch_merge",
            "add_pre_mm_projector_layer_norm": True,
            "adapter_bias": False,
            "image_token_id": IMAGE_TOKEN_ID,
            "image_break_token_id": IMAGE_BREAK_TOKEN_ID,
            "image_end_token_id": IMAGE_END_TOKEN_ID,
        }
    )
    vision.ignore("image_size")  # of the table of positions, which are computed here
    vision.finish()
    return config


def native_naming(config: ModelConfig, is_vision_refused: bool = False) -> Naming:
    """What the native layout calls the tensors of each slot."""
    sources: dict[str, tuple[Source, ...]] = {slot: (Source(stem),) for slot, stem in _TOP_NAMES.items()}
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        for slot, stem in _LAYER_NAMES.items():
            sources[prefix + slot] = (Source(prefix + stem),)
        for slot, stem in _EXPERT_NAMES.items():
            sources[prefix + slot] = tuple(
                Source(f"{prefix}experts.{expert}.{stem}", expert)
                for expert in range(config.n_routed_experts)
            )
    if config.vision is None:
        return Naming(sources, skipped_vision(_VISION_PREFIXES, is_vision_refused))
    for slot, stem in _VISION_NAMES.items():
        sources[f"vision.{slot}"] = (Source(stem),)
    for layer in range(config.vision.num_hidden_layers):
        for slot, stem in _VISION_LAYER_NAMES.items():
            sources[f"vision.layers.{layer}.{slot}"] = (Source(f"vision_encoder.transformer.layers.{layer}.{stem}"),)
    return Naming(sources, ())
