"""Loading: every byte in its place, in every layout and form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Mistral4Config, Mistral4ForCausalLM

from sparkstral.checkpoint import names_native
from sparkstral.checkpoint.load import load
from sparkstral.checkpoint.plan import plan_load
from sparkstral.errors import CheckpointError
from sparkstral.model.weights import DenseWeight, Fp8Weight, ModelWeights, Nvfp4Weight
from tests.support.messages import says
from tests.support.tiny_checkpoint import (
    TINY,
    ExpertForm,
    Tensors,
    equal_gate_up_scales,
    hf_tensors,
    native_tensors,
    text_config,
    vision_text_config,
    write_hf,
    write_native,
)

FORMS: tuple[ExpertForm, ...] = ("bf16", "fp8", "nvfp4")


def walk(value: Any, path: str = "weights") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a tree of dataclasses, and their paths."""
    if value is None:
        return
    if isinstance(value, Tensor):
        yield path, value
    elif is_dataclass(value):
        for field in fields(value):
            yield from walk(getattr(value, field.name), f"{path}.{field.name}")
    else:
        for index, item in enumerate(value):
            yield from walk(item, f"{path}[{index}]")


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal in shape, dtype and every bit (NaN codes of FP8 included)."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert as_bytes(found) == as_bytes(expected)


def assert_same_weights(found: ModelWeights, expected: ModelWeights) -> None:
    found_tensors, expected_tensors = dict(walk(found)), dict(walk(expected))
    assert found_tensors.keys() == expected_tensors.keys()
    for path, tensor in expected_tensors.items():
        assert_same(found_tensors[path], tensor)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_dense_tensors_are_in_their_places(tmp_path: Path, shards: int, index: bool) -> None:
    tensors = native_tensors(TINY, "bf16")
    config, weights = load(write_native(tmp_path, tensors=tensors, shards=shards, index=index))
    assert config.num_hidden_layers == len(weights.layers) == 2
    assert_same(weights.embed_tokens, tensors["tok_embeddings.weight"])
    assert_same(weights.norm, tensors["norm.weight"])
    assert isinstance(weights.lm_head, DenseWeight)
    assert_same(weights.lm_head.weight, tensors["output.weight"])
    for number, layer in enumerate(weights.layers):
        prefix = f"layers.{number}."
        attention = layer.attention
        for found, name in [
            (layer.attention_norm, "attention_norm"),
            (attention.q_a_proj, "attention.wq_a"),
            (attention.q_a_norm, "attention.q_a_norm"),
            (attention.q_b_proj, "attention.wq_b"),
            (attention.kv_a_proj, "attention.wkv_a_with_mqa"),
            (attention.kv_a_norm, "attention.kv_a_norm"),
            (attention.kv_b_proj, "attention.wkv_b"),
            (attention.o_proj, "attention.wo"),
            (layer.ffn_norm, "ffn_norm"),
            (layer.router, "gate"),
            (layer.shared_expert.gate, "shared_experts.w1"),
            (layer.shared_expert.up, "shared_experts.w3"),
            (layer.shared_expert.down, "shared_experts.w2"),
        ]:
            tensor = found.weight if isinstance(found, DenseWeight) else found
            assert isinstance(tensor, Tensor)
            assert_same(tensor, tensors[f"{prefix}{name}.weight"])
        for weight, name in [
            (layer.experts.gate, "w1"),
            (layer.experts.up, "w3"),
            (layer.experts.down, "w2"),
        ]:
            assert isinstance(weight, DenseWeight)
            expected = [tensors[f"{prefix}experts.{e}.{name}.weight"] for e in range(TINY.num_experts)]
            assert_same(weight.weight, torch.stack(expected))


def test_nvfp4_experts_are_the_bytes_of_the_file(tmp_path: Path) -> None:
    tensors = native_tensors(TINY, "nvfp4")
    _, weights = load(write_native(tmp_path, tensors=tensors, shards=2))
    assert_nvfp4_experts(weights, tensors)


def assert_nvfp4_experts(weights: ModelWeights, tensors: Tensors) -> None:
    for number, layer in enumerate(weights.layers):
        for name, weight in [
            ("w1", layer.experts.gate),
            ("w3", layer.experts.up),
            ("w2", layer.experts.down),
        ]:
            assert isinstance(weight, Nvfp4Weight)
            stems = [f"layers.{number}.experts.{e}.{name}." for e in range(TINY.num_experts)]
            assert_same(weight.packed, torch.stack([tensors[stem + "weight_packed"] for stem in stems]))
            assert_same(weight.scale, torch.stack([tensors[stem + "weight_scale"] for stem in stems]))
            assert_same(
                weight.global_scale, torch.cat([tensors[stem + "weight_global_scale"] for stem in stems])
            )
        shared = layer.shared_expert.gate
        assert isinstance(shared, Nvfp4Weight)
        stem = f"layers.{number}.shared_experts.w1."
        assert_same(shared.packed, tensors[stem + "weight_packed"])
        assert_same(shared.scale, tensors[stem + "weight_scale"])
        assert_same(shared.global_scale, tensors[stem + "weight_global_scale"][0])


@pytest.mark.parametrize(
    "names",
    [
        {"experts.gate": "w3", "experts.up": "w1", "experts.down": "w2"},
        {"experts.gate": "w1", "experts.up": "w1", "experts.down": "w2"},
    ],
)
def test_a_mistaken_name_of_an_expert_matrix_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, str]
) -> None:
    """A mutation: w1 and w3 have one shape, so that nothing but their contents tells them apart."""
    tensors = native_tensors(TINY, "nvfp4")
    write_native(tmp_path, tensors=tensors)
    monkeypatch.setattr(names_native, "_EXPERT_NAMES", names)
    with pytest.raises((AssertionError, CheckpointError)):
        assert_nvfp4_experts(load(tmp_path)[1], tensors)


def test_gate_and_up_keep_their_own_global_scales(tmp_path: Path) -> None:
    _, weights = load(write_native(tmp_path))
    experts = weights.layers[0].experts
    assert isinstance(experts.gate, Nvfp4Weight)
    assert isinstance(experts.up, Nvfp4Weight)
    assert not torch.equal(experts.gate.global_scale, experts.up.global_scale)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale_shape", [(), (1,)])
def test_fp8_with_one_scale_a_matrix(
    tmp_path: Path, scale_dtype: torch.dtype, scale_shape: tuple[int, ...]
) -> None:
    tensors = native_tensors(TINY, "fp8")
    for name in [name for name in tensors if name.endswith(".qscale_weight")]:
        tensors[name] = tensors[name].to(scale_dtype).reshape(scale_shape)
    _, weights = load(write_native(tmp_path, tensors=tensors))
    layer = weights.layers[1]
    o_proj, up = layer.attention.o_proj, layer.experts.up
    assert isinstance(o_proj, Fp8Weight)
    assert isinstance(up, Fp8Weight)
    assert_same(o_proj.weight, tensors["layers.1.attention.wo.weight"])
    assert_same(o_proj.scale, tensors["layers.1.attention.wo.qscale_weight"].float().reshape(()))
    stems = [f"layers.1.experts.{e}.w3." for e in range(TINY.num_experts)]
    assert_same(up.weight, torch.stack([tensors[stem + "weight"] for stem in stems]))
    assert_same(
        up.scale, torch.stack([tensors[stem + "qscale_weight"].float().reshape(()) for stem in stems])
    )


def test_f32_weights_stay_f32(tmp_path: Path) -> None:
    tensors = native_tensors(TINY, "bf16", dtype=torch.float32)
    _, weights = load(write_native(tmp_path, tensors=tensors))
    assert {tensor.dtype for _, tensor in walk(weights)} == {torch.float32}


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
@pytest.mark.parametrize(
    ("form", "stacked"),  # no tool stacks NVFP4 experts
    [("bf16", True), ("bf16", False), ("fp8", True), ("fp8", False), ("nvfp4", False)],
)
def test_native_and_hf_files_of_one_model_load_to_identical_weights(
    tmp_path: Path, form: ExpertForm, stacked: bool, prefix: str
) -> None:
    tensors = native_tensors(TINY, form, with_vision=True)
    if form == "fp8":
        tensors = equal_gate_up_scales(tensors)
    native = load(write_native(tmp_path / "native", tensors=tensors, with_vision=True))
    assert native[1].vision is not None
    hf = load(write_hf(tmp_path / "hf", hf_tensors(tensors, prefix, stacked=stacked), vision_text_config(), shards=2))
    assert native[0] == hf[0]
    assert_same_weights(hf[1], native[1])


def test_files_saved_by_transformers_load_to_the_weights_of_the_native_file(tmp_path: Path) -> None:
    tensors = native_tensors(TINY, "bf16")
    model = Mistral4ForCausalLM(Mistral4Config(**TINY.hf_config())).bfloat16()
    model.load_state_dict(hf_tensors(tensors, stacked=True), strict=True)
    model.save_pretrained(tmp_path / "hf", max_shard_size="200KB")
    assert len(list((tmp_path / "hf").glob("model-*.safetensors"))) > 1
    native = load(write_native(tmp_path / "native", tensors=tensors))
    hf = load(tmp_path / "hf")
    assert native[0] == hf[0]
    assert_same_weights(hf[1], native[1])


def test_lm_head_below_the_language_model(tmp_path: Path) -> None:
    tensors = hf_tensors(native_tensors(TINY, "bf16", with_vision=True), "language_model.model.", stacked=True)
    tensors["language_model.lm_head.weight"] = tensors.pop("lm_head.weight")
    _, weights = load(write_hf(tmp_path, tensors, vision_text_config()))
    assert isinstance(weights.lm_head, DenseWeight)
    assert_same(weights.lm_head.weight, tensors["language_model.lm_head.weight"])


def test_fp8_scale_of_compressed_tensors(tmp_path: Path) -> None:
    tensors = {
        name.replace(".qscale_weight", ".weight_scale").replace(".qscale_act", ".input_scale"): tensor
        for name, tensor in native_tensors(TINY, "fp8").items()
    }
    _, weights = load(write_native(tmp_path, tensors=tensors))
    o_proj = weights.layers[0].attention.o_proj
    assert isinstance(o_proj, Fp8Weight)
    assert_same(o_proj.scale, tensors["layers.0.attention.wo.weight_scale"])


@pytest.mark.parametrize("form", FORMS)
def test_plan_knows_the_bytes_in_memory(tmp_path: Path, form: ExpertForm) -> None:
    write_native(tmp_path, experts=form)
    _, weights = load(tmp_path)
    # Storages, because the experts are views of their layer's stack.
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for _, tensor in walk(weights)}
    assert sum(storage.nbytes() for storage in storages.values()) == plan_load(tmp_path).weights_bytes


@pytest.mark.parametrize("layout", ["native", "hf"])
def test_nvfp4_experts_of_a_layer_are_one_stack(tmp_path: Path, layout: str) -> None:
    tensors = native_tensors(TINY, "nvfp4")
    if layout == "native":
        write_native(tmp_path, tensors=tensors, shards=3)
    else:
        write_hf(tmp_path, hf_tensors(tensors, stacked=False), text_config(), shards=3)
    _, weights = load(tmp_path)
    for number, layer in enumerate(weights.layers):
        assert layer.stacked is not None
        experts = [*(f"experts.{e}" for e in range(TINY.num_experts)), "shared_experts"]
        stems = [f"layers.{number}.{expert}." for expert in experts]

        def parts(matrix: str, suffix: str, stems: list[str] = stems) -> Tensor:
            return torch.stack([tensors[f"{stem}{matrix}.{suffix}"] for stem in stems])

        for suffix, gate_up, down in [
            ("weight_packed", layer.stacked.gate_up.packed, layer.stacked.down.packed),
            ("weight_scale", layer.stacked.gate_up.scale, layer.stacked.down.scale),
            ("weight_global_scale", layer.stacked.gate_up.global_scale, layer.stacked.down.global_scale[:, None]),
        ]:
            assert_same(gate_up, torch.cat((parts("w1", suffix), parts("w3", suffix)), dim=1))
            assert_same(down, parts("w2", suffix))
            assert gate_up.is_contiguous()


@pytest.mark.parametrize("form", ["bf16", "fp8"])
def test_experts_in_other_forms_are_not_stacked(tmp_path: Path, form: ExpertForm) -> None:
    _, weights = load(write_native(tmp_path, experts=form))
    assert [layer.stacked for layer in weights.layers] == [None, None]


@pytest.mark.parametrize(
    ("form", "name", "value"),
    [
        ("nvfp4", "layers.0.experts.2.w3.weight_global_scale", 0.0),
        ("nvfp4", "layers.1.experts.3.w2.weight_global_scale", -1.0),
        ("nvfp4", "layers.1.shared_experts.w1.weight_global_scale", float("nan")),
        ("fp8", "layers.0.experts.2.w1.qscale_weight", float("inf")),
        ("fp8", "layers.0.attention.wo.qscale_weight", float("nan")),
        ("fp8", "layers.0.attention.wo.qscale_weight", -0.5),
    ],
)
def test_scale_that_no_matrix_can_have(tmp_path: Path, form: ExpertForm, name: str, value: float) -> None:
    tensors = native_tensors(TINY, form)
    tensors[name] = torch.full_like(tensors[name], value)
    write_native(tmp_path, tensors=tensors)
    with pytest.raises(
        CheckpointError, match=says("consolidated.safetensors", name, value, "download it again")
    ):
        load(tmp_path)


def test_scales_of_matrices_of_zeros_are_let_pass(tmp_path: Path) -> None:
    tensors = native_tensors(TINY, "nvfp4")
    name = "layers.0.experts.2.w3.weight_global_scale"
    tensors[name] = torch.full_like(tensors[name], float("inf"))
    load(write_native(tmp_path, tensors=tensors))
