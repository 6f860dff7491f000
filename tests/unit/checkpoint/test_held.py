"""What the classes of the weights take, against the figures of docs/model.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkstral.checkpoint.facts import RELEASED_PARAMS, facts_of_folder, facts_of_params, released_model
from sparkstral.checkpoint.held import decoded_lines, held_lines, stored_bytes
from sparkstral.checkpoint.plan import plan_load
from sparkstral.checkpoint.slots import list_slots
from sparkstral.errors import CheckpointError
from sparkstral.memory.holding import DraftHead, Holding
from tests.support.tiny_checkpoint import ExpertForm, write_native

PARAMS = Path(__file__).parents[2] / "data" / "params_mistral_small_4.json"


def by_name(holding: Holding) -> dict[str, int]:
    model = released_model()
    return {line.name: line.num_bytes for line in held_lines(model.config, model.forms, holding, model.source)}


def test_the_package_brings_the_released_configuration() -> None:
    assert RELEASED_PARAMS.read_bytes() == PARAMS.read_bytes()


def test_the_release_by_class() -> None:
    found = by_name(Holding())
    assert found == {
        "routed experts": 65_229_871_104,
        "shared experts": 509_608_368,
        "attention": 2_019_649_536,
        "routers": 37_748_736,
        "layer and final norms": 598_016,
        "token embedding": 1_073_741_824,
        "output head": 1_073_741_824,
        "vision and projector": 856_944_640,
        "w_uk, w_uv": 36 * 32 * 192 * 256 * 2,
        "allocator gaps": 36 * 6 << 20,
    }
    assert released_model().stored_bytes == 69_944_959_408 + 856_944_640  # the text model, and vision


def test_attention_and_head_in_fp8_are_half_and_a_scale_a_row() -> None:
    plain, small = by_name(Holding()), by_name(Holding(dense="fp8"))
    rows = 36 * (1024 + 4096 + 320 + 4096)
    as_they_are = 36 * (1024 + 256 + 6144 * 256)  # norms, and kv_b_proj for the expanded form
    assert small["attention"] == (plain["attention"] - 2 * as_they_are) // 2 + 4 * rows + 2 * as_they_are
    assert small["w_uk, w_uv"] == plain["w_uk, w_uv"] // 2 + 4 * 36 * 6144
    assert small["output head"] == plain["output head"] // 2 + 4 * 131_072
    changed = {name for name in plain if plain[name] != small[name]}
    assert changed == {"attention", "output head", "w_uk, w_uv"}


def test_what_comes_beside_the_text_model() -> None:
    model = released_model()
    draft = DraftHead.published(model.config)
    assert draft.num_bytes == pytest.approx(392e6, rel=0.002)  # the size that the Hub shows
    found = by_name(Holding(draft=draft))
    assert (found["vision and projector"], found["draft head"]) == (856_944_640, draft.num_bytes)
    assert Holding(draft=draft).kv_layers(model.config) == 38


@pytest.mark.parametrize("experts", ["nvfp4", "fp8", "bf16"])
def test_sizes_by_shapes_are_those_of_the_headers(tmp_path: Path, experts: ExpertForm) -> None:
    plan = plan_load(write_native(tmp_path, experts=experts))
    buffers: dict[bool, int] = {True: 0, False: 0}
    for buffer in plan.buffers:
        buffers["expert" in buffer.slot or "stacked" in buffer.slot] += buffer.num_bytes
    for is_expert, num_bytes in buffers.items():
        slots = [slot for slot in list_slots(plan.config) if ("expert" in slot.name) is is_expert]
        assert sum(stored_bytes(slot.shape, plan.forms[slot.name]) for slot in slots) == num_bytes
    held = {line.name: line.num_bytes for line in held_lines(plan.config, plan.forms, Holding(), "headers")}
    assert held["routed experts"] + held["shared experts"] == buffers[True]


def test_plain_pytorch_holds_every_parameter_in_one_dtype(tmp_path: Path) -> None:
    plan = plan_load(write_native(tmp_path))
    two, four = (sum(line.num_bytes for line in decoded_lines(plan.config, n, "x")) for n in (2, 4))
    routers = 4 * sum(s.shape[0] * s.shape[1] for s in list_slots(plan.config) if s.name.endswith("router"))
    assert four - routers == 2 * (two - routers)


def test_a_folder_with_nothing_but_its_configuration_is_known_by_that(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_bytes(PARAMS.read_bytes())
    found = facts_of_folder(tmp_path, "here")
    assert (found.source, found.stored) == ("params.json", released_model().stored)


def test_headers_say_what_vision_takes(tmp_path: Path) -> None:
    facts = facts_of_folder(write_native(tmp_path, with_vision=True), "here")
    assert facts.source == "headers"
    (vision,) = (line for line in facts.stored if line.name == "vision and projector")
    assert facts.stored_bytes > vision.num_bytes > 0


def test_a_vision_block_with_a_gap_is_an_error_with_the_key(tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    path.write_text(PARAMS.read_text().replace('"spatial_merge_size":2,', ""))
    with pytest.raises(CheckpointError, match=r"vision_encoder\.spatial_merge_size is missing"):
        facts_of_params(path, "here")
