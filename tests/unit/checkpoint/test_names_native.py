"""params.json: every key read, checked or named as ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkstral.checkpoint.names_native import read_params
from sparkstral.errors import CheckpointError
from sparkstral.model.config import ModelConfig, VisionConfig
from tests.support.messages import says
from tests.support.tiny_checkpoint import TINY, TinyModel

REAL_PARAMS = Path(__file__).parents[2] / "data" / "params_mistral_small_4.json"

MISTRAL_SMALL_4 = ModelConfig(
    hidden_size=4096,
    num_hidden_layers=36,
    vocab_size=131072,
    num_attention_heads=32,
    q_lora_rank=1024,
    n_routed_experts=128,
    moe_intermediate_size=2048,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    rope_factor=128.0,
    rope_beta_fast=32.0,
    rope_beta_slow=1.0,
    original_max_position_embeddings=8192,
    llama_4_scaling_beta=0.1,
    llama_4_original_max_position_embeddings=8192,
    max_position_embeddings=1048576,
    vision=VisionConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_image_size=1540,
        rope_theta=10000.0,
    ),
)


def put(values: dict[str, Any], path: str, value: object) -> None:
    """Set the key "a.b"; `...` removes it."""
    *sections, key = path.split(".")
    for section in sections:
        values = values[section]
    if value is ...:
        del values[key]
    else:
        values[key] = value


def write(folder: Path, changes: dict[str, object], model: TinyModel = TINY) -> Path:
    params = model.params(with_vision=True)
    for path, value in changes.items():
        put(params, path, value)
    file = folder / "params.json"
    file.write_text(json.dumps(params))
    return file


def test_the_released_file() -> None:
    assert read_params(REAL_PARAMS) == MISTRAL_SMALL_4


def test_a_small_model_of_the_family(tmp_path: Path) -> None:
    config = read_params(write(tmp_path, {}))
    assert (config.hidden_size, config.num_hidden_layers, config.n_routed_experts) == (64, 2, 4)
    assert config.max_position_embeddings == 16 * 1024


@pytest.mark.parametrize(
    "path",
    [
        "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "vocab_size", "q_lora_rank", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "norm_eps", "rope_theta", "tied_embeddings",
        "max_position_embeddings", "llama_4_scaling", "yarn", "moe", "llama_4_scaling.beta",
        "yarn.apply_scale",
        "llama_4_scaling.original_max_position_embeddings", "yarn.factor", "yarn.alpha", "yarn.beta",
        "yarn.original_max_position_embeddings", "moe.num_experts", "moe.expert_hidden_dim",
        "moe.num_experts_per_tok", "moe.num_shared_experts", "moe.routed_scale", "moe.route_every_n",
        "moe.first_k_dense_replace", "moe.num_expert_groups", "moe.num_expert_groups_per_tok",
        "vision_encoder.hidden_size", "vision_encoder.max_image_size", "vision_encoder.add_pre_mm_projector_layer_norm",
    ],
)  # fmt: skip
def test_missing_key(tmp_path: Path, path: str) -> None:
    file = write(tmp_path, {path: ...})
    with pytest.raises(CheckpointError, match=says(f"{file}: {path} is missing", "same repository")):
        read_params(file)


@pytest.mark.parametrize(
    "path", ["hidden_dim", "vision_encoder", "moe.expert_parallel", "moe.expert_model_parallel"]
)
def test_key_that_changes_nothing_may_be_missing(tmp_path: Path, path: str) -> None:
    assert read_params(write(tmp_path, {path: ...})).hidden_size == 64


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("rope_thta", "rope_theta"),
        ("sliding_window", None),
        ("moe.num_expert", "moe.num_experts"),
        ("yarn.mscale", None),
        ("llama_4_scaling.betta", "llama_4_scaling.beta"),
        ("vision_encoder.patch_sizes", "vision_encoder.patch_size"),
    ],
)
def test_unknown_key(tmp_path: Path, path: str, nearest: str | None) -> None:
    file = write(tmp_path, {path: 1})
    hint = f"nearest known name is {nearest}" if nearest else "unknown to this engine"
    with pytest.raises(CheckpointError, match=says(f"{file}: {path} = 1", hint, "remove the key")):
        read_params(file)


@pytest.mark.parametrize("value", ["4096", 4096.5, True, None, 0, -1, [1]])
def test_mistyped_integer(tmp_path: Path, value: object) -> None:
    file = write(tmp_path, {"dim": value})
    with pytest.raises(CheckpointError, match=says(f"{file}: dim is {value!r}", "an integer of at least 1")):
        read_params(file)


def test_fewer_experts_than_each_token_takes(tmp_path: Path) -> None:
    file = write(tmp_path, {"moe.num_experts": 3})
    with pytest.raises(CheckpointError, match=says(f"{file}: moe.num_experts is 3", "at least 4")):
        read_params(file)


@pytest.mark.parametrize("value", ["1e-6", True, None, 0, -1e-6, float("nan"), float("inf")])
def test_mistyped_number(tmp_path: Path, value: object) -> None:
    file = write(tmp_path, {"norm_eps": value})
    with pytest.raises(CheckpointError, match=says(f"{file}: norm_eps is {value!r}", "a positive number")):
        read_params(file)


def test_mistyped_section(tmp_path: Path) -> None:
    file = write(tmp_path, {"moe": 4})
    with pytest.raises(CheckpointError, match=says(f"{file}: moe is 4", "an object")):
        read_params(file)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("head_dim", 192, 128),
        ("n_kv_heads", 1, 2),
        ("kv_lora_rank", 512, 256),
        ("qk_nope_head_dim", 128, 64),
        ("qk_rope_head_dim", 32, 64),
        ("v_head_dim", 64, 128),
        ("tied_embeddings", True, False),
        ("yarn.apply_scale", True, False),
        ("moe.num_experts_per_tok", 8, 4),
        ("moe.num_shared_experts", 2, 1),
        ("moe.routed_scale", 2.5, 1.0),
        ("moe.first_k_dense_replace", 3, 0),
        ("moe.route_every_n", 2, 1),
        ("moe.num_expert_groups", 8, 1),
        ("moe.num_expert_groups_per_tok", 4, 1),
        ("vision_encoder.patch_size", 16, 14),
        ("vision_encoder.spatial_merge_size", 1, 2),
        ("vision_encoder.hidden_size", 192, 128),
        ("vision_encoder.image_token_id", 11, 10),
        ("vision_encoder.adapter_bias", True, False),
    ],
)
def test_constant_of_another_model(tmp_path: Path, path: str, value: object, expected: object) -> None:
    file = write(tmp_path, {path: value})
    with pytest.raises(
        CheckpointError, match=says(file, f"{path} is {value!r}", f"only {expected!r}", "Mistral Small 4")
    ):
        read_params(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"dim": 64', "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "holds a JSON list"),
    ],
)
def test_file_that_is_no_json_object(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "params.json"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=says(file, message, "etch")):
        read_params(file)
