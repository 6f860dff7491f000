"""Every tensor used or named as skipped, every slot filled, shapes and dtypes right: else one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparkstral.checkpoint.naming import ACTIVATION_SCALE_REASON, NO_ENCODER_REASON, NO_VISION_REASON
from sparkstral.checkpoint.plan import plan_load
from sparkstral.errors import CheckpointError
from tests.support.messages import says
from tests.support.tiny_checkpoint import (
    TINY,
    VISION_LAYERS,
    ExpertForm,
    Tensors,
    TinyModel,
    hf_tensors,
    native_tensors,
    text_config,
    vision_text_config,
    write_hf,
    write_native,
)

FILE = "consolidated.safetensors"
EXPERT = "layers.0.experts.2.w1"
SAME_SOURCE = "from the same repository"


def write_changed(
    folder: Path, change: Callable[[Tensors], object], form: ExpertForm = "nvfp4", with_vision: bool = False
) -> Path:
    tensors = native_tensors(TINY, form)
    change(tensors)
    return write_native(folder, tensors=tensors, with_vision=with_vision)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("layers.2.attention_norm.weight", "layers.1.attention_norm.weight"),
        ("layers.0.experts.4.w1.weight_packed", "layers.0.experts.3.w1.weight_packed"),
        ("layers.0.attention.wq_c.weight", "layers.0.attention.wq_b.weight"),
        ("layers.0.attention.wo.bias", "layers.0.attention.wo.weight"),
        ("adapter.lora_A.weight", ""),
    ],
)
def test_unknown_tensor(tmp_path: Path, name: str, nearest: str) -> None:
    write_changed(tmp_path, lambda tensors: tensors.update({name: torch.zeros(3, 5)}))
    with pytest.raises(
        CheckpointError,
        match=says(tmp_path / FILE, f"tensor {name} (F32 [3, 5]) has no place", nearest, "1 of", SAME_SOURCE),
    ):
        plan_load(tmp_path)


def test_renamed_tensor_is_told_with_the_name_that_is_missing(tmp_path: Path) -> None:
    write_changed(tmp_path, lambda tensors: tensors.update({"outputs.weight": tensors.pop("output.weight")}))
    with pytest.raises(
        CheckpointError, match=says("outputs.weight", "nearest name that has one is output.weight")
    ):
        plan_load(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "tok_embeddings.weight",
        "norm.weight",
        "output.weight",
        "layers.1.attention.wkv_b.weight",
        "layers.0.gate.weight",
        f"{EXPERT}.weight_packed",
        f"{EXPERT}.weight_scale",
        f"{EXPERT}.weight_global_scale",
        "layers.0.shared_experts.w2.weight_packed",
    ],
)
def test_missing_tensor(tmp_path: Path, name: str) -> None:
    write_changed(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(
        CheckpointError,
        match=says(tmp_path, "1 tensors that the model needs", name, "Download the checkpoint again"),
    ):
        plan_load(tmp_path)


def test_missing_fp8_scale(tmp_path: Path) -> None:
    write_changed(tmp_path, lambda tensors: tensors.pop("layers.0.attention.wo.qscale_weight"), "fp8")
    with pytest.raises(CheckpointError, match=says("1 tensors", "layers.0.attention.wo.qscale_weight")):
        plan_load(tmp_path)


def test_many_missing_tensors_are_counted_and_the_first_named(tmp_path: Path) -> None:
    def drop_layer(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("layers.1.attention.")]:
            del tensors[name]

    write_changed(tmp_path, drop_layer)
    with pytest.raises(
        CheckpointError, match=says("7 tensors", "layers.1.attention.wq_a.weight", "and 4 more")
    ):
        plan_load(tmp_path)


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("layers.0.attention.wkv_a_with_mqa.weight", (576, 64), (320, 64)),
        ("layers.0.attention.wkv_b.weight", (256, 384), (384, 256)),
        ("tok_embeddings.weight", (97, 64), (96, 64)),
        ("layers.0.ffn_norm.weight", (64, 1), (64,)),
    ],
)
def test_wrong_shape(tmp_path: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    write_changed(tmp_path, lambda tensors: tensors.update({name: torch.zeros(found, dtype=torch.bfloat16)}))
    with pytest.raises(
        CheckpointError,
        match=says(
            tmp_path / FILE, f"tensor {name} has shape {list(found)}, expected {list(expected)}", SAME_SOURCE
        ),
    ):
        plan_load(tmp_path)


@pytest.mark.parametrize(
    ("suffix", "found", "expected"),
    [
        ("weight_packed", [32, 64], [32, 32]),
        ("weight_scale", [32, 8], [32, 4]),
        ("weight_global_scale", [2], []),
    ],
)
def test_wrong_shape_of_an_nvfp4_part(
    tmp_path: Path, suffix: str, found: list[int], expected: list[int]
) -> None:
    name = f"{EXPERT}.{suffix}"
    write_changed(
        tmp_path, lambda tensors: tensors.update({name: torch.zeros(found).to(tensors[name].dtype)})
    )
    with pytest.raises(
        CheckpointError, match=says(FILE, f"{name} has shape {found}, expected {expected}", SAME_SOURCE)
    ):
        plan_load(tmp_path)


def test_fp8_with_a_scale_for_each_row(tmp_path: Path) -> None:
    name = "layers.0.attention.wo.qscale_weight"
    write_changed(tmp_path, lambda tensors: tensors.update({name: torch.ones(64, 1)}), "fp8")
    with pytest.raises(CheckpointError, match=says(FILE, f"{name} has shape [64, 1], expected []")):
        plan_load(tmp_path)


@pytest.mark.parametrize(
    ("name", "dtype", "found", "expected"),
    [
        ("layers.0.attention.wo.weight", torch.float16, "F16", "BF16 or F32"),
        ("layers.0.attention.wo.weight", torch.uint8, "U8", "BF16 or F32"),
        ("layers.0.ffn_norm.weight", torch.float16, "F16", "BF16 or F32"),
        (f"{EXPERT}.weight_packed", torch.int32, "I32", "U8"),
        (f"{EXPERT}.weight_scale", torch.uint8, "U8", "F8_E4M3"),
        (f"{EXPERT}.weight_global_scale", torch.bfloat16, "BF16", "F32"),
    ],
)
def test_wrong_dtype(tmp_path: Path, name: str, dtype: torch.dtype, found: str, expected: str) -> None:
    write_changed(tmp_path, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(
        CheckpointError,
        match=says(
            tmp_path / FILE, f"tensor {name} has dtype {found}, expected {expected}", "use such a checkpoint"
        ),
    ):
        plan_load(tmp_path)


def test_experts_of_one_set_in_two_dtypes(tmp_path: Path) -> None:
    name = f"{EXPERT}.weight"
    write_changed(tmp_path, lambda tensors: tensors.update({name: tensors[name].float()}), "bf16")
    with pytest.raises(CheckpointError, match=says(FILE, f"{name} has dtype F32, expected BF16")):
        plan_load(tmp_path)


@pytest.mark.parametrize("matrix", ["tok_embeddings", "layers.0.gate", "layers.0.ffn_norm"])
def test_quantized_where_the_engine_computes_dense(tmp_path: Path, matrix: str) -> None:
    def quantize(tensors: Tensors) -> None:
        tensors[f"{matrix}.weight"] = tensors[f"{matrix}.weight"].to(torch.float8_e4m3fn)
        tensors[f"{matrix}.qscale_weight"] = torch.tensor(1.0)

    write_changed(tmp_path, quantize)
    with pytest.raises(
        CheckpointError, match=says(FILE, f"{matrix}.weight is stored as fp8", "BF16 or F32", "unquantized")
    ):
        plan_load(tmp_path)


def replace_expert(tensors: Tensors, stems: list[str], donor: Tensors) -> None:
    for stem in stems:
        for name in [name for name in tensors if name.startswith(stem + ".")]:
            del tensors[name]
        tensors |= {name: tensor for name, tensor in donor.items() if name.startswith(stem + ".")}


@pytest.mark.parametrize(
    ("stems", "first"),
    [
        ([EXPERT], "layers.0.experts.0.w1 is nvfp4"),  # one matrix of a stack
        ([f"layers.0.experts.{e}.w2" for e in range(4)], "layers.0.experts.0.w1 is nvfp4"),  # w2 of all
        (["layers.1.shared_experts.w3"], "layers.1.shared_experts.w1 is nvfp4"),
    ],
)
@pytest.mark.parametrize("other", ["bf16", "fp8"])
def test_experts_of_one_set_in_two_forms(
    tmp_path: Path, stems: list[str], first: str, other: ExpertForm
) -> None:
    donor = native_tensors(TINY, other)
    write_changed(tmp_path, lambda tensors: replace_expert(tensors, stems, donor))
    form = "dense" if other == "bf16" else "fp8"
    with pytest.raises(
        CheckpointError, match=says(tmp_path, first, f"{stems[0]} is {form}", "all experts of a layer alike")
    ):
        plan_load(tmp_path)


def test_layers_may_differ_in_form(tmp_path: Path) -> None:
    stems = ["layers.1.experts", "layers.1.shared_experts"]
    donor = native_tensors(TINY, "bf16")
    plan = plan_load(write_changed(tmp_path, lambda tensors: replace_expert(tensors, stems, donor)))
    assert plan.forms["layers.0.experts.up"] == "nvfp4"
    assert plan.forms["layers.1.experts.up"] == "dense"


def test_output_head_may_be_quantized(tmp_path: Path) -> None:
    def quantize(tensors: Tensors) -> None:
        tensors["output.weight"] = tensors["output.weight"].to(torch.float8_e4m3fn)
        tensors["output.qscale_weight"] = torch.tensor(1.0)

    assert plan_load(write_changed(tmp_path, quantize)).forms["lm_head"] == "fp8"


def test_sizes_that_nvfp4_cannot_have(tmp_path: Path) -> None:
    model = TinyModel(expert_width=24)
    write_native(tmp_path, model, "nvfp4")
    with pytest.raises(
        CheckpointError, match=says("params.json", "layers.0.experts.down has 24 columns", "16")
    ):
        plan_load(tmp_path)


def test_forms_follow_the_tensors_and_not_the_ignore_list(tmp_path: Path) -> None:
    write_native(tmp_path, experts="nvfp4")
    path = tmp_path / "params.json"
    params = json.loads(path.read_text())
    params["quantization_config"] = {"quant_method": "compressed-tensors", "ignore": ["re:.*experts.*"]}
    path.write_text(json.dumps(params))
    forms = plan_load(tmp_path).forms
    assert forms["layers.0.experts.gate"] == "nvfp4"
    assert forms["lm_head"] == "dense"


def test_skipped_tensors_are_named_with_the_reason(tmp_path: Path) -> None:
    plan = plan_load(write_native(tmp_path, with_vision=True), with_vision=False)
    reasons = {tensor.entry.name: tensor.reason for tensor in plan.skipped}
    assert reasons["vision_encoder.ln_pre.weight"] == NO_VISION_REASON
    assert reasons["patch_merger.merging_layer.weight"] == NO_VISION_REASON
    assert reasons[f"{EXPERT}.input_global_scale"] == ACTIVATION_SCALE_REASON
    assert len(reasons) == 2 + 9 * VISION_LAYERS + 4 + 2 * (4 + 1) * 3


@pytest.mark.parametrize("layout", ["native", "hf"])
def test_without_vision_its_weights_take_no_memory(tmp_path: Path, layout: str) -> None:
    tensors = native_tensors(TINY, "bf16", with_vision=True)
    if layout == "native":
        write_native(tmp_path, tensors=tensors, with_vision=True)
    else:
        write_hf(tmp_path, hf_tensors(tensors, stacked=True), vision_text_config())
    of_vision = sum(tensor.nbytes for name, tensor in tensors.items() if "vision" in name or "patch" in name)
    of_vision += tensors["pre_mm_projector_norm.weight"].nbytes
    whole, text = plan_load(tmp_path), plan_load(tmp_path, with_vision=False)
    assert whole.weights_bytes - text.weights_bytes == of_vision
    assert text.config == replace(whole.config, vision=None)


def test_a_tower_that_the_configuration_does_not_describe_is_left_in_the_file(tmp_path: Path) -> None:
    write_native(tmp_path, tensors=native_tensors(TINY, with_vision=True), with_vision=False)
    plan = plan_load(tmp_path)
    reasons = {tensor.entry.name: tensor.reason for tensor in plan.skipped}
    assert reasons["vision_encoder.ln_pre.weight"] == NO_ENCODER_REASON
    assert plan.config.vision is None


def test_a_tower_that_is_missing_names_the_flag(tmp_path: Path) -> None:
    write_native(tmp_path, tensors=native_tensors(TINY), with_vision=True)
    with pytest.raises(CheckpointError, match=says("vision_encoder.patch_conv.weight", "(--no-vision)")):
        plan_load(tmp_path)
    write_changed(tmp_path, lambda tensors: tensors.pop("norm.weight"), with_vision=True)
    with pytest.raises(CheckpointError, match=r"from one revision\.$"):
        plan_load(tmp_path)


def test_activation_scale_of_nothing_is_unknown(tmp_path: Path) -> None:
    write_changed(
        tmp_path, lambda tensors: tensors.update({"layers.9.experts.0.w1.input_global_scale": torch.ones(1)})
    )
    with pytest.raises(
        CheckpointError, match=says("layers.9.experts.0.w1.input_global_scale", "has no place")
    ):
        plan_load(tmp_path)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.layers.0.mlp.experts.gate_up_proj", (4, 32, 64), [4, 64, 64]),
        ("model.layers.0.mlp.experts.gate_up_proj", (8, 64, 64), [4, 64, 64]),
        ("model.layers.1.mlp.experts.down_proj", (4, 32, 64), [4, 64, 32]),
    ],
)
def test_wrong_shape_of_stacked_experts(
    tmp_path: Path, name: str, shape: tuple[int, ...], expected: list[int]
) -> None:
    tensors = hf_tensors(native_tensors(TINY, "bf16"), stacked=True)
    tensors[name] = torch.zeros(shape, dtype=torch.bfloat16)
    write_hf(tmp_path, tensors, text_config())
    with pytest.raises(
        CheckpointError,
        match=says(
            "model.safetensors", f"{name} has shape {list(shape)}, expected {expected}", "config.json"
        ),
    ):
        plan_load(tmp_path)


@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_missing_half_of_stacked_experts(tmp_path: Path, name: str) -> None:
    tensors = hf_tensors(native_tensors(TINY, "bf16"), stacked=True)
    del tensors[f"model.layers.0.mlp.experts.{name}"]
    write_hf(tmp_path, tensors, text_config())
    with pytest.raises(CheckpointError, match=says(": 1 tensors", f"model.layers.0.mlp.experts.{name}.")):
        plan_load(tmp_path)
