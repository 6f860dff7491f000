"""The native checkpoint layout of Mistral Small 4 NVFP4, written from and read into transformers' parameter
names.

Owns names, dtypes and shards; must not know training. Source: docs/model.md, checkpoint section: experts as
weight_packed U8, weight_scale F8_E4M3, weight_global_scale F32 and input_global_scale (F32; BF16 for the
shared expert), all else BF16; wkv_b and RoPE rows are in the same order in both layouts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tools.demo import model_config as shape
from tools.demo.quantise import E2M1_MAX, E4M3_MAX, Nvfp4Matrix, quantise, unpack

INDEX_FILE = "consolidated.safetensors.index.json"
PARAMS_FILE = "params.json"
TEKKEN_FILE = "tekken.json"
LAYERS_IN_SHARD = 3  # about 12 MB; the embedding and the head are a shard of the same size

GLOBAL_NAMES = {
    "model.embed_tokens.weight": "tok_embeddings.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm.weight": "attention_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_a_proj.weight": "attention.wq_a.weight",
    "self_attn.q_a_layernorm.weight": "attention.q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attention.wq_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attention.wkv_a_with_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attention.kv_a_norm.weight",
    "self_attn.kv_b_proj.weight": "attention.wkv_b.weight",
    "self_attn.o_proj.weight": "attention.wo.weight",
    "mlp.gate.weight": "gate.weight",
}
SHARED_NAMES = {
    "mlp.shared_experts.gate_proj.weight": "shared_experts.w1",
    "mlp.shared_experts.up_proj.weight": "shared_experts.w3",
    "mlp.shared_experts.down_proj.weight": "shared_experts.w2",
}
GATE_UP_NAME = "mlp.experts.gate_up_proj"
DOWN_NAME = "mlp.experts.down_proj"


def expert_matrices(state: Mapping[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The expert matrices of a layer by native name without suffix ("layers.0.experts.3.w1"), as in
    `state`."""
    prefix, native = f"model.layers.{layer}.", f"layers.{layer}."
    gate_up, down = state[prefix + GATE_UP_NAME], state[prefix + DOWN_NAME]
    matrices = {}
    for expert in range(shape.NUM_EXPERTS):
        gate, up = gate_up[expert].chunk(2)
        matrices[f"{native}experts.{expert}.w1"] = gate
        matrices[f"{native}experts.{expert}.w2"] = down[expert]
        matrices[f"{native}experts.{expert}.w3"] = up
    return matrices | {native + name: state[prefix + hf_name] for hf_name, name in SHARED_NAMES.items()}


def _quantised(name: str, weight: Tensor, input_amax: float) -> dict[str, Tensor]:
    matrix = quantise(weight.float()[None])
    input_scale = torch.tensor([E4M3_MAX * E2M1_MAX / input_amax])
    return {
        f"{name}.weight_packed": matrix.packed()[0],
        f"{name}.weight_scale": matrix.scale[0],
        f"{name}.weight_global_scale": matrix.global_scale,
        f"{name}.input_global_scale": input_scale.bfloat16() if "shared_experts" in name else input_scale,
    }


def write(
    state: Mapping[str, Tensor], input_amax: Mapping[str, float], tekken_path: Path, folder: Path
) -> int:
    """Write a checkpoint folder from parameters under transformers' names; returns its size in bytes.

    input_amax: largest magnitude that each expert matrix was given, by native name ("layers.0.experts.3.w1").
    """
    state = {name: tensor.detach().cpu() for name, tensor in state.items()}
    shards: list[dict[str, Tensor]] = []
    for first in range(0, shape.NUM_LAYERS, LAYERS_IN_SHARD):
        shard: dict[str, Tensor] = {}
        for layer in range(first, min(first + LAYERS_IN_SHARD, shape.NUM_LAYERS)):
            for hf_name, name in LAYER_NAMES.items():
                shard[f"layers.{layer}.{name}"] = state[f"model.layers.{layer}.{hf_name}"].bfloat16()
            for name, weight in expert_matrices(state, layer).items():
                shard |= _quantised(name, weight, input_amax[name])
        shards.append(shard)
    shards.append({name: state[hf_name].bfloat16() for hf_name, name in GLOBAL_NAMES.items()})

    folder.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number, shard in enumerate(shards, 1):
        file_name = f"consolidated-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in shard.items()}, folder / file_name)
        weight_map |= dict.fromkeys(shard, file_name)
        total_bytes += sum(tensor.nbytes for tensor in shard.values())
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=0) + "\n")
    (folder / PARAMS_FILE).write_text(json.dumps(shape.native_params(), indent=2) + "\n")
    if tekken_path.resolve() != (folder / TEKKEN_FILE).resolve():
        shutil.copyfile(tekken_path, folder / TEKKEN_FILE)
    return sum(path.stat().st_size for path in folder.iterdir())


def read(folder: Path) -> dict[str, Tensor]:
    """A checkpoint's parameters under transformers' names, float32, the experts decoded from NVFP4."""
    weight_map = json.loads((folder / INDEX_FILE).read_text())["weight_map"]
    tensors: dict[str, Tensor] = {}
    for file_name in sorted(set(weight_map.values())):
        with safe_open(folder / file_name, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def decoded(name: str) -> Tensor:
        packed, scale = tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_scale"]
        matrix = Nvfp4Matrix(unpack(packed)[None], scale[None], tensors[f"{name}.weight_global_scale"])
        return matrix.dense()[0]

    state = {hf_name: tensors[name].float() for hf_name, name in GLOBAL_NAMES.items()}
    for layer in range(shape.NUM_LAYERS):
        prefix, native = f"model.layers.{layer}.", f"layers.{layer}."
        for hf_name, name in LAYER_NAMES.items():
            state[prefix + hf_name] = tensors[native + name].float()
        for hf_name, name in SHARED_NAMES.items():
            state[prefix + hf_name] = decoded(native + name)
        experts = [f"{native}experts.{expert}" for expert in range(shape.NUM_EXPERTS)]
        state[prefix + GATE_UP_NAME] = torch.stack(
            [torch.cat([decoded(f"{name}.w1"), decoded(f"{name}.w3")]) for name in experts]
        )
        state[prefix + DOWN_NAME] = torch.stack([decoded(f"{name}.w2") for name in experts])
    return state
