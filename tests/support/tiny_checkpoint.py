"""Tiny random checkpoints of the model's family, in every layout and form that the engine reads.

Real head sizes, everything else small. Names and forms are written down here a second time, from
docs/model.md, so that a wrong name in `checkpoint/` does not agree with itself. Weights have a deviation
of K^-0.5, so that activations are of order 1; w1 and w3 of an expert get unequal global scales.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

ExpertForm = Literal["bf16", "fp8", "nvfp4"]
Tensors = dict[str, Tensor]

E2M1_RMS = 2.926  # of the 16 codes: {0, .5, 1, 1.5, 2, 3, 4, 6} and their negatives
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5368709120\n"
E4M3_SCALES = (150.0, 350.0)  # where random block scales lie
VISION_HIDDEN, VISION_WIDTH, VISION_LAYERS = 128, 96, 2
MAX_IMAGE_SIZE = 140  # 5 tokens each way


@dataclass(frozen=True)
class TinyModel:
    """Sizes of a tiny model; all of them multiples of 16, as NVFP4 needs."""

    hidden_size: int = 64
    num_layers: int = 2
    vocab_size: int = 96
    num_heads: int = 2
    q_lora_rank: int = 32
    num_experts: int = 4
    expert_width: int = 32
    original_max_position: int = 1024
    rope_factor: int = 16

    def params(self, with_vision: bool = False) -> dict[str, Any]:
        """A params.json."""
        params: dict[str, Any] = {
            "dim": self.hidden_size,
            "n_layers": self.num_layers,
            "head_dim": 128,
            "hidden_dim": 3 * self.hidden_size,
            "n_heads": self.num_heads,
            "n_kv_heads": self.num_heads,
            "rope_theta": 10000.0,
            "norm_eps": 1e-06,
            "vocab_size": self.vocab_size,
            "tied_embeddings": False,
            "max_position_embeddings": self.rope_factor * self.original_max_position,
            "llama_4_scaling": {
                "original_max_position_embeddings": self.original_max_position,
                "beta": 0.1,
            },
            "q_lora_rank": self.q_lora_rank,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 64,
            "kv_lora_rank": 256,
            "v_head_dim": 128,
            "yarn": {
                "original_max_position_embeddings": self.original_max_position,
                "factor": self.rope_factor,
                "apply_scale": False,
                "beta": 32,
                "alpha": 1,
            },
            "moe": {
                "expert_parallel": 1,
                "expert_model_parallel": 1,
                "route_every_n": 1,
                "first_k_dense_replace": 0,
                "num_experts": self.num_experts,
                "num_experts_per_tok": 4,
                "num_expert_groups": 1,
                "num_expert_groups_per_tok": 1,
                "routed_scale": 1.0,
                "expert_hidden_dim": self.expert_width,
                "num_shared_experts": 1,
            },
        }
        if with_vision:
            params["vision_encoder"] = {
                "image_token_id": 10,
                "image_break_token_id": 12,
                "image_end_token_id": 13,
                "intermediate_size": VISION_WIDTH,
                "num_hidden_layers": VISION_LAYERS,
                "num_attention_heads": VISION_HIDDEN // 64,
                "mm_projector_id": "patch_merge",
                "spatial_merge_size": 2,
                "hidden_size": VISION_HIDDEN,
                "num_channels": 3,
                "image_size": MAX_IMAGE_SIZE,
                "max_image_size": MAX_IMAGE_SIZE,
                "patch_size": 14,
                "rope_theta": 10000.0,
                "add_pre_mm_projector_layer_norm": True,
                "adapter_bias": False,
            }
        return params

    def hf_config(self) -> dict[str, Any]:
        """The keyword arguments of transformers' Mistral4Config."""
        return {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "vocab_size": self.vocab_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_heads,
            "q_lora_rank": self.q_lora_rank,
            "kv_lora_rank": 256,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "intermediate_size": 3 * self.hidden_size,
            "moe_intermediate_size": self.expert_width,
            "n_routed_experts": self.num_experts,
            "n_shared_experts": 1,
            "num_experts_per_tok": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-06,
            "max_position_embeddings": self.rope_factor * self.original_max_position,
            "tie_word_embeddings": False,
            "rope_interleave": True,
            "attention_bias": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "type": "yarn",
                "rope_theta": 10000.0,
                "factor": float(self.rope_factor),
                "original_max_position_embeddings": self.original_max_position,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
                "partial_rotary_factor": 0.5,
            },
        }


TINY = TinyModel()


# ------------------------------------------------------------------------------------------------------------
# Tensors, by their native names
# ------------------------------------------------------------------------------------------------------------


def native_tensors(
    model: TinyModel = TINY,
    experts: ExpertForm = "nvfp4",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    with_vision: bool = False,
) -> Tensors:
    """All tensors of a model by their native names. With fp8, attention is FP8 too, as in that release."""
    random = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    hidden, heads, q_rank = model.hidden_size, model.num_heads, model.q_lora_rank

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=random).mul(columns**-0.5)

    def norm(name: str, size: int) -> None:
        tensors[name + ".weight"] = (1 + 0.1 * torch.randn(size, generator=random)).to(dtype)

    def dense(stem: str, rows: int, columns: int) -> None:
        tensors[stem + ".weight"] = normal(rows, columns).to(dtype)

    def fp8(stem: str, rows: int, columns: int) -> None:
        scale = torch.tensor(0.25 + 0.5 * float(torch.rand(1, generator=random))) * columns**-0.5
        tensors[stem + ".weight"] = (normal(rows, columns) / scale).to(torch.float8_e4m3fn)
        tensors[stem + ".qscale_weight"] = scale
        tensors[stem + ".qscale_act"] = torch.tensor(0.5)

    def nvfp4(stem: str, rows: int, columns: int) -> None:
        low, high = E4M3_SCALES
        scale = low + (high - low) * torch.rand(rows, columns // 16, generator=random)
        global_scale = (
            E2M1_RMS * (low + high) / 2 * columns**0.5 * (0.8 + 0.4 * torch.rand(1, generator=random))
        )
        tensors[stem + ".weight_packed"] = torch.randint(
            0, 256, (rows, columns // 2), dtype=torch.uint8, generator=random
        )
        tensors[stem + ".weight_scale"] = scale.to(torch.float8_e4m3fn)
        tensors[stem + ".weight_global_scale"] = global_scale
        # The released shared experts have this one in BF16.
        of_shared = "shared_experts" in stem
        tensors[stem + ".input_global_scale"] = torch.tensor([300.0]).to(
            torch.bfloat16 if of_shared else torch.float32
        )

    attention = fp8 if experts == "fp8" else dense
    expert = {"bf16": dense, "fp8": fp8, "nvfp4": nvfp4}[experts]
    dense("tok_embeddings", model.vocab_size, hidden)
    for layer in range(model.num_layers):
        prefix = f"layers.{layer}."
        norm(prefix + "attention_norm", hidden)
        attention(prefix + "attention.wq_a", q_rank, hidden)
        norm(prefix + "attention.q_a_norm", q_rank)
        attention(prefix + "attention.wq_b", heads * 128, q_rank)
        attention(prefix + "attention.wkv_a_with_mqa", 320, hidden)
        norm(prefix + "attention.kv_a_norm", 256)
        attention(prefix + "attention.wkv_b", heads * 192, 256)
        attention(prefix + "attention.wo", hidden, heads * 128)
        norm(prefix + "ffn_norm", hidden)
        dense(prefix + "gate", model.num_experts, hidden)
        for stem in [*(f"experts.{e}." for e in range(model.num_experts)), "shared_experts."]:
            expert(prefix + stem + "w1", model.expert_width, hidden)
            expert(prefix + stem + "w3", model.expert_width, hidden)
            expert(prefix + stem + "w2", hidden, model.expert_width)
    norm("norm", hidden)
    dense("output", model.vocab_size, hidden)
    if with_vision:
        conv = normal(VISION_HIDDEN, 3 * 14 * 14).view(VISION_HIDDEN, 3, 14, 14)
        tensors["vision_encoder.patch_conv.weight"] = conv.to(dtype)
        norm("vision_encoder.ln_pre", VISION_HIDDEN)
        for layer in range(VISION_LAYERS):
            prefix = f"vision_encoder.transformer.layers.{layer}."
            norm(prefix + "attention_norm", VISION_HIDDEN)
            norm(prefix + "ffn_norm", VISION_HIDDEN)
            for matrix in ("wq", "wk", "wv", "wo"):
                dense(f"{prefix}attention.{matrix}", VISION_HIDDEN, VISION_HIDDEN)
            dense(prefix + "feed_forward.w1", VISION_WIDTH, VISION_HIDDEN)
            dense(prefix + "feed_forward.w3", VISION_WIDTH, VISION_HIDDEN)
            dense(prefix + "feed_forward.w2", VISION_HIDDEN, VISION_WIDTH)
        norm("pre_mm_projector_norm", VISION_HIDDEN)
        dense("patch_merger.merging_layer", VISION_HIDDEN, 4 * VISION_HIDDEN)
        dense("vision_language_adapter.w_in", hidden, VISION_HIDDEN)
        dense("vision_language_adapter.w_out", hidden, hidden)
    return tensors


# ------------------------------------------------------------------------------------------------------------
# The same tensors by their Hugging Face names
# ------------------------------------------------------------------------------------------------------------

HF_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.wq_a": "self_attn.q_a_proj",
    "attention.q_a_norm": "self_attn.q_a_layernorm",
    "attention.wq_b": "self_attn.q_b_proj",
    "attention.wkv_a_with_mqa": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_a_norm": "self_attn.kv_a_layernorm",
    "attention.wkv_b": "self_attn.kv_b_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate",
    "shared_experts.w1": "mlp.shared_experts.gate_proj",
    "shared_experts.w3": "mlp.shared_experts.up_proj",
    "shared_experts.w2": "mlp.shared_experts.down_proj",
}
HF_EXPERT_NAMES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
HF_VISION_NAMES = {
    "vision_encoder.": "model.vision_tower.",
    "pre_mm_projector_norm.": "model.multi_modal_projector.norm.",
    "patch_merger.": "model.multi_modal_projector.patch_merger.",
    "vision_language_adapter.w_in.": "model.multi_modal_projector.linear_1.",
    "vision_language_adapter.w_out.": "model.multi_modal_projector.linear_2.",
}
HF_VISION_MATRICES = {
    ".wq.": ".q_proj.",
    ".wk.": ".k_proj.",
    ".wv.": ".v_proj.",
    ".wo.": ".o_proj.",
    ".w1.": ".gate_proj.",
    ".w3.": ".up_proj.",
    ".w2.": ".down_proj.",
}
HF_SUFFIXES = {"qscale_weight": "weight_scale_inv", "qscale_act": "activation_scale"}


def hf_tensors(native: Mapping[str, Tensor], prefix: str = "model.", *, stacked: bool) -> Tensors:
    """Native tensors renamed; the experts stacked into gate_up_proj and down_proj, or a module each.

    Stacked FP8 experts must have equal scales in w1 and w3 (`equal_gate_up_scales`): there is one for both.
    """
    tensors: Tensors = {}
    experts: dict[tuple[str, int, str, str], Tensor] = {}
    top = {
        "tok_embeddings.weight": f"{prefix}embed_tokens.weight",
        "norm.weight": f"{prefix}norm.weight",
        "output.weight": "lm_head.weight",
    }
    for name, tensor in native.items():
        if name in top:
            tensors[top[name]] = tensor
            continue
        if not name.startswith("layers."):
            native_prefix = next(p for p in HF_VISION_NAMES if name.startswith(p))
            hf_prefix = HF_VISION_NAMES[native_prefix]
            if not prefix.startswith("model."):  # as transformers 5.24 saves it
                hf_prefix = hf_prefix.removeprefix("model.")
            if ".wq." in name or ".wk." in name:
                tensor = in_halves(tensor)
            rest = name.removeprefix(native_prefix)
            for native_part, hf_part in HF_VISION_MATRICES.items():
                rest = rest.replace(native_part, hf_part)
            tensors[hf_prefix + rest] = tensor
            continue
        _, layer, stem = name.split(".", 2)
        stem, suffix = stem.rsplit(".", 1)
        suffix = HF_SUFFIXES.get(suffix, suffix)
        if stem.startswith("experts."):
            _, expert, matrix = stem.split(".")
            experts[layer, int(expert), matrix, suffix] = tensor
        else:
            tensors[f"{prefix}layers.{layer}.{HF_LAYER_NAMES[stem]}.{suffix}"] = tensor
    if not stacked:
        for (layer, expert_id, matrix, suffix), tensor in experts.items():
            stem = f"{prefix}layers.{layer}.mlp.experts.{expert_id}.{HF_EXPERT_NAMES[matrix]}"
            tensors[f"{stem}.{suffix}"] = tensor
        return tensors
    num_experts = 1 + max(expert_id for _, expert_id, _, _ in experts)
    for layer in sorted({key[0] for key in experts}):
        stem = f"{prefix}layers.{layer}.mlp.experts."

        def stack(matrix: str, suffix: str, layer: str = layer) -> Tensor:
            return torch.stack([experts[layer, e, matrix, suffix] for e in range(num_experts)])

        tensors[stem + "gate_up_proj"] = torch.cat([stack("w1", "weight"), stack("w3", "weight")], dim=1)
        tensors[stem + "down_proj"] = stack("w2", "weight")
        if (layer, 0, "w1", "weight_scale_inv") in experts:
            tensors[stem + "gate_up_proj_scale_inv"] = stack("w1", "weight_scale_inv")[:, None, None]
            tensors[stem + "down_proj_scale_inv"] = stack("w2", "weight_scale_inv")[:, None, None]
            tensors[stem + "gate_up_proj_activation_scale"] = stack("w1", "activation_scale")
            tensors[stem + "down_proj_activation_scale"] = stack("w2", "activation_scale")
    return tensors


def in_halves(weight: Tensor) -> Tensor:
    """Vision's queries and keys as transformers has them: of each head's 64 rows the even ones before the odd ones."""
    heads = [torch.cat((head[0::2], head[1::2])) for head in weight.split(64)]
    return torch.cat(heads)


def equal_gate_up_scales(native: Mapping[str, Tensor]) -> Tensors:
    """FP8 tensors in which each routed expert's w3 has w1's scale."""
    return {
        name: native[name.replace(".w3.qscale", ".w1.qscale")].clone() if ".experts." in name else tensor
        for name, tensor in native.items()
    }


# ------------------------------------------------------------------------------------------------------------
# Files
# ------------------------------------------------------------------------------------------------------------


def write_native(
    folder: Path,
    model: TinyModel = TINY,
    experts: ExpertForm = "nvfp4",
    *,
    tensors: Mapping[str, Tensor] | None = None,
    shards: int = 1,
    index: bool = True,
    seed: int = 0,
    with_vision: bool = False,
) -> Path:
    """Write params.json and consolidated*.safetensors (of `tensors`, or random ones); return the folder."""
    if tensors is None:
        tensors = native_tensors(model, experts, seed=seed, with_vision=with_vision)
    _write(folder, "consolidated", tensors, shards, index)
    (folder / "params.json").write_text(json.dumps(model.params(with_vision)))
    return folder


def write_hf(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    shards: int = 1,
    index: bool = True,
) -> Path:
    """Write config.json and model*.safetensors; return the folder."""
    _write(folder, "model", tensors, shards, index)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def text_config(model: TinyModel = TINY) -> dict[str, Any]:
    """A config.json of Mistral4ForCausalLM."""
    return {"architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", **model.hf_config()}


def vision_text_config(model: TinyModel = TINY) -> dict[str, Any]:
    """A config.json of Mistral3ForConditionalGeneration around it."""
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "image_token_id": 10,
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "tie_word_embeddings": False,
        "text_config": {"model_type": "mistral4", **model.hf_config()},
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": VISION_HIDDEN,
            "intermediate_size": VISION_WIDTH,
            "num_hidden_layers": VISION_LAYERS,
            "num_attention_heads": VISION_HIDDEN // 64,
            "head_dim": 64,
            "num_channels": 3,
            "image_size": MAX_IMAGE_SIZE,
            "patch_size": 14,
            "hidden_act": "silu",
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
        },
        "vision_feature_layer": -1,
    }


def _write(folder: Path, stem: str, tensors: Mapping[str, Tensor], shards: int, index: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        part = {name: tensors[name].contiguous() for name in names[shard::shards]}
        file = f"{stem}-{shard + 1:05d}-of-{shards:05d}.safetensors" if shards > 1 else f"{stem}.safetensors"
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    if index:
        total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        content = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(content))
