"""The census: the released checkpoints, name by name and byte by byte, from headers without data."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
from transformers import Mistral3Config, Mistral4Config, PixtralVisionConfig

from sparkstral.checkpoint.facts import facts_of_load, released_model
from sparkstral.checkpoint.forms import Form
from sparkstral.checkpoint.held import held_lines
from sparkstral.checkpoint.plan import LoadPlan, plan_load
from sparkstral.checkpoint.slots import TensorClass
from sparkstral.checkpoint.summary import CheckpointSummary, summarize
from sparkstral.memory.holding import Holding
from tests.support.header_only import mistral_small_4_fp8_hf, mistral_small_4_nvfp4, write_header_only
from tests.support.tiny_checkpoint import write_native
from tests.unit.checkpoint.test_names_native import MISTRAL_SMALL_4, REAL_PARAMS

NUM_SHARDS = 13
_NOT_IN_FILES = ("w_uk, w_uv", "allocator gaps")


@pytest.fixture(scope="module")
def nvfp4_plan(tmp_path_factory: pytest.TempPathFactory) -> LoadPlan:
    folder = tmp_path_factory.mktemp("nvfp4")
    tensors = {name: (dtype, shape) for name, dtype, shape in mistral_small_4_nvfp4()}
    shard_of = {  # all activation scales are in the last shard, as in the release
        name: NUM_SHARDS if name.endswith("input_global_scale") else 1 + number % NUM_SHARDS
        for number, name in enumerate(tensors)
    }
    file_names = {
        shard: f"consolidated-{shard:05d}-of-{NUM_SHARDS:05d}.safetensors" for shard in shard_of.values()
    }
    for shard, file_name in file_names.items():
        write_header_only(
            folder / file_name, {name: tensors[name] for name in tensors if shard_of[name] == shard}
        )
    weight_map = {name: file_names[shard] for name, shard in shard_of.items()}
    (folder / "consolidated.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    shutil.copy(REAL_PARAMS, folder / "params.json")
    return plan_load(folder)


@pytest.fixture(scope="module")
def fp8_plan(tmp_path_factory: pytest.TempPathFactory) -> LoadPlan:
    folder = tmp_path_factory.mktemp("fp8")
    write_header_only(
        folder / "model.safetensors",
        {name: (dtype, shape) for name, dtype, shape in mistral_small_4_fp8_hf()},
    )
    tower = PixtralVisionConfig(image_size=1540, patch_size=14, hidden_act="silu")
    config = Mistral3Config(text_config=Mistral4Config(), vision_config=tower, tie_word_embeddings=False)
    config.architectures = ["Mistral3ForConditionalGeneration"]
    config.save_pretrained(folder)
    return plan_load(folder)


def test_nvfp4_release_is_whole(nvfp4_plan: LoadPlan) -> None:
    summary = summarize(nvfp4_plan)
    assert summary.config == MISTRAL_SMALL_4
    assert summary.layout == "native"
    assert len(summary.files) == NUM_SHARDS
    assert summary.num_tensors == 56_313
    assert summary.num_bytes == 70_801_959_560
    assert summary.num_parameters == 119_401_298_944


@pytest.mark.parametrize(
    ("tensor_class", "num_bytes"),
    [
        (TensorClass.ROUTED_EXPERTS, 65_229_871_104),
        (TensorClass.SHARED_EXPERTS, 509_608_368),
        (TensorClass.ATTENTION, 2_019_649_536),
        (TensorClass.ROUTERS, 37_748_736),
        (TensorClass.NORMS, 598_016),
        (TensorClass.EMBEDDING, 1_073_741_824),
        (TensorClass.HEAD, 1_073_741_824),
        (TensorClass.VISION, 856_944_640),
        (TensorClass.ACTIVATION_SCALES, 55_512),
    ],
)
def test_nvfp4_release_by_class(nvfp4_plan: LoadPlan, tensor_class: TensorClass, num_bytes: int) -> None:
    (found,) = [row for row in summarize(nvfp4_plan).classes if row.name == tensor_class]
    assert found.num_bytes == num_bytes


def test_nvfp4_release_takes_its_models_bytes_in_memory(nvfp4_plan: LoadPlan) -> None:
    assert nvfp4_plan.weights_bytes == 69_944_959_408 + 856_944_640  # text, vision
    assert sum(span.num_bytes for span in nvfp4_plan.spans) == nvfp4_plan.weights_bytes


def test_nvfp4_release_quantizes_experts_only(nvfp4_plan: LoadPlan) -> None:
    quantized = {slot for slot, form in nvfp4_plan.forms.items() if form is not Form.DENSE}
    assert {form for slot, form in nvfp4_plan.forms.items() if slot in quantized} == {Form.NVFP4}
    assert quantized == {
        f"layers.{layer}.{experts}.{name}"
        for layer in range(36)
        for experts in ("experts", "shared_expert")
        for name in ("gate", "up", "down")
    }


def test_nvfp4_release_skips_activation_scales(nvfp4_plan: LoadPlan) -> None:
    skipped = {row.name: row for row in summarize(nvfp4_plan).classes if row.skipped_reason}
    assert {name: row.num_tensors for name, row in skipped.items()} == {
        TensorClass.ACTIVATION_SCALES: 36 * 129 * 3,
    }
    assert len(nvfp4_plan.skipped) + len(nvfp4_plan.used) == 56_313


def test_every_byte_of_every_buffer_is_filled_once(nvfp4_plan: LoadPlan, fp8_plan: LoadPlan) -> None:
    for plan in (nvfp4_plan, fp8_plan):
        filled: dict[object, list[tuple[int, int]]] = {}
        for span in plan.spans:
            size = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}[span.tensor.dtype]
            last = span.first_element + span.num_bytes // size
            filled.setdefault(span.buffer, []).append((span.first_element, last))
        assert filled.keys() == set(plan.buffers)
        for buffer in plan.buffers:
            end = 0
            for first, last in sorted(filled[buffer]):
                assert first == end
                end = last
            assert end == math.prod(buffer.shape)


def test_files_are_read_forwards(nvfp4_plan: LoadPlan) -> None:
    places = [(span.tensor.file.name, span.offset) for span in nvfp4_plan.spans]
    assert places == sorted(places)


def test_fp8_release_in_the_hf_layout(fp8_plan: LoadPlan) -> None:
    summary = summarize(fp8_plan)
    assert summary.layout == "hf"
    assert summary.config == MISTRAL_SMALL_4
    assert summary.num_parameters == 119_401_298_944
    entries = [used.entry for used in fp8_plan.used] + [skipped.entry for skipped in fp8_plan.skipped]
    assert sum(math.prod(entry.shape) for entry in entries) == 119_401_317_952  # as the release's index says
    assert sum(entry.num_bytes for entry in entries if entry.dtype == "F8_E4M3") == 117_879_865_344


def test_summary_is_json(tmp_path: Path) -> None:
    summary = summarize(plan_load(write_native(tmp_path, shards=2, with_vision=True)))
    found = json.loads(json.dumps(dataclasses.asdict(summary)))
    assert found.keys() == {field.name for field in dataclasses.fields(CheckpointSummary)}
    assert found["folder"] == str(tmp_path)
    assert [file["name"] for file in found["files"]] == [
        "consolidated-00001-of-00002.safetensors",
        "consolidated-00002-of-00002.safetensors",
    ]
    experts = found["classes"][0]
    assert experts["name"] == "routed experts"
    assert experts["forms"] == ["nvfp4"]
    assert experts["num_parameters"] == 2 * 4 * 3 * 64 * 32
    assert experts["dtypes"] == {
        "U8": 2 * 4 * 3 * 64 * 32 // 2,
        "F8_E4M3": 2 * 4 * 3 * 64 * 32 // 16,
        "F32": 2 * 4 * 3 * 4,
    }


def test_a_plan_without_headers_takes_the_release_for_what_it_is(nvfp4_plan: LoadPlan) -> None:
    by_headers, by_params = facts_of_load(nvfp4_plan, "x"), released_model()
    assert by_headers.forms == by_params.forms
    assert by_headers.config == by_params.config
    scales = next(line.num_bytes for line in by_headers.stored if line.name == "activation scales")
    assert by_headers.stored_bytes - scales == by_params.stored_bytes
    held = held_lines(nvfp4_plan.config, nvfp4_plan.forms, Holding(), "headers")
    assert sum(line.num_bytes for line in held if line.name not in _NOT_IN_FILES) == nvfp4_plan.weights_bytes
