"""The Hugging Face layout: what config.json says, and what the tensors of model*.safetensors are called.

Owns the two architectures, the three prefixes under which their tensors are saved, and the two forms of
experts (one 3-D tensor for all, or a module for each). Must not know how a matrix is stored (plan).
Source: docs/model.md sections 1.1 and 3.5; transformers 5.24, models/mistral4 and models/mistral3.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkstral.checkpoint.config_file import Section, read_json_object
from sparkstral.checkpoint.index import CheckpointIndex
from sparkstral.checkpoint.naming import Naming, Source, StackedSource, skipped_vision
from sparkstral.errors import CheckpointError
from sparkstral.model.config import (
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

_MODEL_TYPES = {"Mistral4ForCausalLM": "mistral4", "Mistral3ForConditionalGeneration": "mistral3"}
_TEXT_MODEL_TYPE = "mistral4"

# Bookkeeping of transformers, and of training: none of it changes what the network computes.
_BOOKKEEPING = (
    "_name_or_path", "architectures", "attention_dropout", "bos_token_id", "chunk_size_feed_forward", "dtype",
    "eos_token_id", "id2label", "initializer_range", "is_encoder_decoder", "label2id", "max_length",
    "model_type", "name_or_path", "output_attentions", "output_hidden_states", "output_router_logits",
    "pad_token_id", "pretraining_tp", "problem_type", "quantization_config", "return_dict",
    "return_dict_in_generate", "router_aux_loss_coef", "torch_dtype", "transformers_version",
    "unsloth_version", "use_cache",
)  # fmt: skip
_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.q_a_proj": "self_attn.q_a_proj",
    "attention.q_a_norm": "self_attn.q_a_layernorm",
    "attention.q_b_proj": "self_attn.q_b_proj",
    "attention.kv_a_proj": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_a_norm": "self_attn.kv_a_layernorm",
    "attention.kv_b_proj": "self_attn.kv_b_proj",
    "attention.o_proj": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "router": "mlp.gate",
    "shared_expert.gate": "mlp.shared_experts.gate_proj",
    "shared_expert.up": "mlp.shared_experts.up_proj",
    "shared_expert.down": "mlp.shared_experts.down_proj",
}
_EXPERT_NAMES = {"experts.gate": "gate_proj", "experts.up": "up_proj", "experts.down": "down_proj"}
_PREFIXES = ("model.language_model.", "language_model.model.", "model.")
_HEADS = ("lm_head", "language_model.lm_head")
_VISION_NAMES = {
    "patch_conv": "vision_tower.patch_conv",
    "ln_pre": "vision_tower.ln_pre",
    "projector_norm": "multi_modal_projector.norm",
    "merging_layer": "multi_modal_projector.patch_merger.merging_layer",
    "linear_1": "multi_modal_projector.linear_1",
    "linear_2": "multi_modal_projector.linear_2",
}
_VISION_LAYER_NAMES = {
    "attention_norm": "attention_norm",
    "q_proj": "attention.q_proj",
    "k_proj": "attention.k_proj",
    "v_proj": "attention.v_proj",
    "o_proj": "attention.o_proj",
    "ffn_norm": "ffn_norm",
    "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj",
    "down": "feed_forward.down_proj",
}
_VISION_PREFIXES = (
    "model.vision_tower.",
    "vision_tower.",
    "model.multi_modal_projector.",
    "multi_modal_projector.",
)


def read_hf_config(path: Path) -> ModelConfig:
    """The configuration in a config.json of Mistral4ForCausalLM, or of Mistral3ForConditionalGeneration.

    Raises `CheckpointError` for another architecture, for a key that is missing, mistyped or unknown (unknown
    keys that are null, false or empty are let pass: transformers adds such keys), and for a constant of
    another model.
    """
    values = read_json_object(path)
    outer = Section(path, values)
    if _model_type(path, values) == _TEXT_MODEL_TYPE:
        return _read_text_config(outer)
    text = outer.section("text_config")
    if (found := text.text("model_type")) != _TEXT_MODEL_TYPE:
        raise CheckpointError(
            f"{path}: the text model is {found!r}, and this engine computes only {_TEXT_MODEL_TYPE!r} "
            "(Mistral Small 4). Earlier Mistral Small models have another network; serve them with another "
            "engine."
        )
    vision = _read_vision_config(outer.section("vision_config"))
    outer.constants({"image_token_id" if "image_token_id" in outer else "image_token_index": IMAGE_TOKEN_ID})
    outer.constants_if_present(
        {
            "tie_word_embeddings": False,
            "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu",
            "spatial_merge_size": SPATIAL_MERGE_SIZE,
            "vision_feature_layer": -1,
        }
    )
    outer.ignore(*_BOOKKEEPING, "image_token_index")
    outer.ignore_if_off()
    outer.finish()
    return replace(_read_text_config(text), vision=vision)


def _read_vision_config(vision: Section) -> VisionConfig:
    rope = vision.section("rope_parameters") if "rope_parameters" in vision else vision
    config = VisionConfig(
        hidden_size=vision.integer("hidden_size"),
        num_hidden_layers=vision.integer("num_hidden_layers"),
        num_attention_heads=vision.integer("num_attention_heads"),
        intermediate_size=vision.integer("intermediate_size"),
        max_image_size=vision.integer("image_size", minimum=PATCH_SIZE * SPATIAL_MERGE_SIZE),
        rope_theta=rope.number("rope_theta"),
    )
    vision.constants(
        {
            "model_type": "pixtral",
            "hidden_size": config.num_attention_heads * VISION_HEAD_DIM,
            "num_channels": NUM_CHANNELS,
            "patch_size": PATCH_SIZE,
            "hidden_act": "silu",
        }
    )
    vision.constants_if_present({"head_dim": VISION_HEAD_DIM})
    if rope is not vision:
        rope.constants_if_present({"rope_type": "axial"})
        rope.finish()
    vision.ignore(*_BOOKKEEPING, "rope_theta")
    vision.ignore_if_off()
    vision.finish()
    return config


def _model_type(path: Path, values: dict[str, Any]) -> str:
    """By `architectures`, or by `model_type` where a quantization tool dropped that key."""
    architectures = values.get("architectures")
    if architectures:
        name = architectures[0] if isinstance(architectures, list) else architectures
        model_type = _MODEL_TYPES.get(str(name))
    else:
        name = model_type = values.get("model_type")
    if model_type not in _MODEL_TYPES.values():
        raise CheckpointError(
            f"{path}: the architecture is {name!r}, and this engine computes only "
            f"{' and '.join(_MODEL_TYPES)} with a {_TEXT_MODEL_TYPE} text model. It serves Mistral Small 4 "
            "(and the demo of its family); serve other models with another engine."
        )
    return str(model_type)


def _read_text_config(text: Section) -> ModelConfig:
    rope = text.section("rope_parameters")
    original_max_position_embeddings = rope.integer("original_max_position_embeddings")
    config = ModelConfig(
        hidden_size=text.integer("hidden_size"),
        num_hidden_layers=text.integer("num_hidden_layers"),
        vocab_size=text.integer("vocab_size"),
        num_attention_heads=text.integer("num_attention_heads"),
        q_lora_rank=text.integer("q_lora_rank"),
        n_routed_experts=text.integer("n_routed_experts", minimum=NUM_EXPERTS_PER_TOK),
        moe_intermediate_size=text.integer("moe_intermediate_size"),
        rms_norm_eps=text.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta"),
        rope_factor=rope.number("factor"),
        rope_beta_fast=rope.number("beta_fast"),
        rope_beta_slow=rope.number("beta_slow"),
        original_max_position_embeddings=original_max_position_embeddings,
        llama_4_scaling_beta=rope.number("llama_4_scaling_beta"),
        llama_4_original_max_position_embeddings=original_max_position_embeddings,  # one for both
        max_position_embeddings=text.integer("max_position_embeddings"),
    )
    text.constants(
        {
            "kv_lora_rank": KV_LORA_RANK,
            "qk_nope_head_dim": QK_NOPE_HEAD_DIM,
            "qk_rope_head_dim": QK_ROPE_HEAD_DIM,
            "v_head_dim": V_HEAD_DIM,
            "num_experts_per_tok": NUM_EXPERTS_PER_TOK,
            "n_shared_experts": N_SHARED_EXPERTS,
            "routed_scaling_factor": ROUTED_SCALING_FACTOR,
            "first_k_dense_replace": 0,
            "n_group": 1,
            "topk_group": 1,
            "hidden_act": "silu",
        }
    )
    text.constants_if_present(
        {
            "num_key_value_heads": config.num_attention_heads,
            "head_dim": QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM,
            "qk_head_dim": QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM,
            "norm_topk_prob": True,
            "moe_layer_freq": 1,
            "rope_interleave": True,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "sliding_window": None,
        }
    )
    rope.constants({"rope_type" if "rope_type" in rope else "type": "yarn"})
    # The magnitude of cos and sin must be 1. transformers says so outright, or by two equal mscales whose
    # quotient it is.
    if "attention_factor" in rope:
        rope.constants({"attention_factor": 1.0})
        rope.ignore("mscale", "mscale_all_dim")
    else:
        rope.constants({"mscale": rope.number("mscale_all_dim")})
    rope.constants_if_present(
        {"partial_rotary_factor": QK_ROPE_HEAD_DIM / (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM), "truncate": True}
    )
    rope.ignore("rope_type", "type", "max_position_embeddings")
    # intermediate_size is the width of dense layers, of which there are none.
    text.ignore(*_BOOKKEEPING, "intermediate_size", "num_local_experts")
    for section in (text, rope):
        section.ignore_if_off()
        section.finish()
    return config


def hf_naming(config: ModelConfig, index: CheckpointIndex, is_vision_refused: bool = False) -> Naming:
    """What these files call the tensors of each slot, by the names that are there."""
    prefix = next((p for p in _PREFIXES if f"{p}embed_tokens.weight" in index.tensors), _PREFIXES[-1])
    head = next(
        (h for h in _HEADS if f"{h}.weight" in index.tensors or f"{h}.weight_packed" in index.tensors),
        _HEADS[0],
    )
    sources: dict[str, tuple[Source, ...] | StackedSource] = {
        "embed_tokens": (Source(f"{prefix}embed_tokens"),),
        "norm": (Source(f"{prefix}norm"),),
        "lm_head": (Source(head),),
    }
    for layer in range(config.num_hidden_layers):
        slot_prefix, layer_prefix = f"layers.{layer}.", f"{prefix}layers.{layer}."
        for slot, stem in _LAYER_NAMES.items():
            sources[slot_prefix + slot] = (Source(layer_prefix + stem),)
        experts = f"{layer_prefix}mlp.experts."
        if f"{experts}gate_up_proj" in index.tensors or f"{experts}down_proj" in index.tensors:
            width = config.moe_intermediate_size
            sources[slot_prefix + "experts.gate"] = StackedSource(f"{experts}gate_up_proj", 2 * width)
            sources[slot_prefix + "experts.up"] = StackedSource(
                f"{experts}gate_up_proj", 2 * width, first_row=width
            )
            sources[slot_prefix + "experts.down"] = StackedSource(f"{experts}down_proj", config.hidden_size)
        else:
            for slot, stem in _EXPERT_NAMES.items():
                sources[slot_prefix + slot] = tuple(
                    Source(f"{experts}{expert}.{stem}", expert) for expert in range(config.n_routed_experts)
                )
    if config.vision is None:
        return Naming(sources, skipped_vision(_VISION_PREFIXES, is_vision_refused))
    outer = "model." if any(name.startswith("model.vision_tower.") for name in index.tensors) else ""
    for slot, stem in _VISION_NAMES.items():
        sources[f"vision.{slot}"] = (Source(outer + stem),)
    for layer in range(config.vision.num_hidden_layers):
        for slot, stem in _VISION_LAYER_NAMES.items():
            stem = f"{outer}vision_tower.transformer.layers.{layer}.{stem}"
            sources[f"vision.layers.{layer}.{slot}"] = (Source(stem),)
    return Naming(sources, ())
