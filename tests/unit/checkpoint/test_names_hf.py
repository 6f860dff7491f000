"""config.json: both architectures, and a clear error for each other one and each key that matters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import Mistral3Config, Mistral4Config, PixtralVisionConfig

from sparkstral.checkpoint.names_hf import read_hf_config
from sparkstral.checkpoint.names_native import read_params
from sparkstral.errors import CheckpointError
from tests.support.messages import says
from tests.support.tiny_checkpoint import TINY, text_config, vision_text_config
from tests.unit.checkpoint.test_names_native import MISTRAL_SMALL_4, put


def write(folder: Path, config: dict[str, Any], changes: dict[str, object] | None = None) -> Path:
    for path, value in (changes or {}).items():
        put(config, path, value)
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


def test_same_configuration_as_the_native_file(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps(TINY.params()))
    native = read_params(tmp_path / "params.json")
    assert read_hf_config(write(tmp_path, text_config())) == native
    (tmp_path / "params.json").write_text(json.dumps(TINY.params(with_vision=True)))
    assert read_hf_config(write(tmp_path, vision_text_config())) == read_params(tmp_path / "params.json")


def test_defaults_of_transformers_are_mistral_small_4(tmp_path: Path) -> None:
    Mistral4Config(architectures=["Mistral4ForCausalLM"]).save_pretrained(tmp_path)
    assert read_hf_config(tmp_path / "config.json") == replace(MISTRAL_SMALL_4, vision=None)


def test_file_with_vision_as_transformers_saves_it(tmp_path: Path) -> None:
    tower = PixtralVisionConfig(image_size=1540, patch_size=14, hidden_act="silu")
    config = Mistral3Config(text_config=Mistral4Config(), vision_config=tower, tie_word_embeddings=False)
    config.architectures = ["Mistral3ForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    assert read_hf_config(tmp_path / "config.json") == MISTRAL_SMALL_4


@pytest.mark.parametrize("config", [text_config(), vision_text_config()])
def test_model_type_tells_where_a_tool_dropped_the_architecture(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    assert read_hf_config(write(tmp_path, config, {"architectures": ...})).hidden_size == 64


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "DeepseekV3ForCausalLM"),
        ({"architectures": ..., "model_type": "llama"}, "llama"),
        ({"architectures": ..., "model_type": ...}, "None"),
    ],
)
def test_unsupported_architecture(tmp_path: Path, changes: dict[str, object], name: str) -> None:
    file = write(tmp_path, text_config(), changes)
    with pytest.raises(
        CheckpointError,
        match=says(file, "architecture is", name, "Mistral4ForCausalLM", "with another engine"),
    ):
        read_hf_config(file)


def test_vision_architecture_around_another_text_model(tmp_path: Path) -> None:
    file = write(tmp_path, vision_text_config(), {"text_config.model_type": "mistral"})
    with pytest.raises(
        CheckpointError, match=says(file, "text model is 'mistral'", "'mistral4'", "another engine")
    ):
        read_hf_config(file)


@pytest.mark.parametrize(
    "path",
    ["hidden_size", "n_routed_experts", "rms_norm_eps", "hidden_act", "rope_parameters",
     "rope_parameters.factor", "rope_parameters.llama_4_scaling_beta",
     "rope_parameters.original_max_position_embeddings", "rope_parameters.mscale",
     "rope_parameters.mscale_all_dim"],
)  # fmt: skip
def test_missing_key(tmp_path: Path, path: str) -> None:
    file = write(tmp_path, text_config(), {path: ...})
    with pytest.raises(CheckpointError, match=says(f"{file}: {path} is missing", "same repository")):
        read_hf_config(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kv_lora_rank", 512),
        ("qk_nope_head_dim", 128),
        ("num_experts_per_tok", 8),
        ("n_shared_experts", 2),
        ("routed_scaling_factor", 2.5),
        ("first_k_dense_replace", 3),
        ("n_group", 8),
        ("topk_group", 4),
        ("hidden_act", "gelu"),
        ("num_key_value_heads", 1),
        ("head_dim", 192),
        ("norm_topk_prob", False),
        ("rope_interleave", False),
        ("attention_bias", True),
        ("tie_word_embeddings", True),
        ("sliding_window", 4096),
        ("rope_parameters.rope_type", "default"),
        ("rope_parameters.mscale", 0.707),
        ("rope_parameters.attention_factor", 1.485),
        ("rope_parameters.partial_rotary_factor", 1.0),
        ("rope_parameters.truncate", False),
    ],
)
def test_constant_of_another_model(tmp_path: Path, path: str, value: object) -> None:
    file = write(tmp_path, text_config(), {path: value})
    with pytest.raises(CheckpointError, match=says(file, f"{path} is {value!r}", "Mistral Small 4")):
        read_hf_config(file)


def test_constant_of_another_model_within_the_text_model(tmp_path: Path) -> None:
    file = write(tmp_path, vision_text_config(), {"text_config.kv_lora_rank": 512})
    with pytest.raises(CheckpointError, match=says(file, "text_config.kv_lora_rank is 512")):
        read_hf_config(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("vision_config.model_type", "siglip"),
        ("vision_config.patch_size", 16),
        ("vision_config.hidden_act", "gelu"),
        ("vision_config.head_dim", 32),
        ("vision_config.rope_parameters.rope_type", "default"),
        ("spatial_merge_size", 1),
        ("vision_feature_layer", -2),
        ("projector_hidden_act", "silu"),
        ("image_token_id", 151655),
    ],
)
def test_constant_of_another_vision_encoder(tmp_path: Path, path: str, value: object) -> None:
    file = write(tmp_path, vision_text_config(), {path: value})
    with pytest.raises(CheckpointError, match=says(file, f"{path} is {value!r}")):
        read_hf_config(file)


def test_tied_embeddings_around_the_text_model(tmp_path: Path) -> None:
    file = write(tmp_path, vision_text_config(), {"tie_word_embeddings": True})
    with pytest.raises(CheckpointError, match=says(file, "tie_word_embeddings is True")):
        read_hf_config(file)


def test_plain_attention_factor_instead_of_two_equal_mscales(tmp_path: Path) -> None:
    changes = {
        "rope_parameters.attention_factor": 1.0,
        "rope_parameters.mscale": ...,
        "rope_parameters.mscale_all_dim": ...,
    }
    assert read_hf_config(write(tmp_path, text_config(), changes)).rope_factor == 16


@pytest.mark.parametrize("path", ["attention_sink_size", "rope_parameters.short_factor"])
def test_unknown_key(tmp_path: Path, path: str) -> None:
    file = write(tmp_path, text_config(), {path: 4})
    with pytest.raises(CheckpointError, match=says(f"{file}: {path} = 4 is unknown")):
        read_hf_config(file)


@pytest.mark.parametrize("value", [None, False, {}, []])
def test_unknown_key_that_is_off_changes_nothing(tmp_path: Path, value: object) -> None:
    assert read_hf_config(write(tmp_path, text_config(), {"attention_sink_size": value})).hidden_size == 64
