"""What an engine holds, by its tensors, is what its plan says by shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from sparkstral.checkpoint.held import decoded_lines, held_lines
from sparkstral.checkpoint.load import load_planned
from sparkstral.checkpoint.plan import plan_load
from sparkstral.engine import build_fast
from sparkstral.memory.holding import Holding
from sparkstral.model.fast_mistral4 import FastMistral4
from sparkstral.model.mistral4 import Mistral4
from sparkstral.runner.held import OTHER, Taken, held_bytes, resident_bytes, split_shared_expert, taken_now
from sparkstral.types import Precision
from tests.support.fast_model import LIMITS, small_configs, with_stacks
from tests.support.tiny_checkpoint import write_native

CPU = torch.device("cpu")


@pytest.mark.parametrize("dense", ["bf16", "fp8"])
def test_the_fast_model_holds_what_is_planned_class_by_class(tmp_path: Path, dense: Precision) -> None:
    plan = plan_load(write_native(tmp_path))
    config, weights = load_planned(plan)
    model = FastMistral4(config, with_stacks(weights), small_configs(), LIMITS, CPU, torch.bfloat16, dense)
    found = split_shared_expert(held_bytes({"model": model}), config.n_routed_experts)
    planned = held_lines(config, plan.forms, Holding(dense=dense), "headers")
    of_tensors = [line for line in planned if line.name != "allocator gaps"]
    for line in of_tensors:
        assert found.pop(line.name) == line.num_bytes, line.name
    assert set(found) == {"workspaces"}


def test_the_plain_model_holds_what_is_planned_class_by_class(tmp_path: Path) -> None:
    plan = plan_load(write_native(tmp_path))
    config, weights = load_planned(plan)
    found = held_bytes({"model": Mistral4(config, weights, CPU, torch.float32)})
    planned = decoded_lines(config, 4, "float32")
    assert {line.name: found.pop(line.name) for line in planned} == {line.name: line.num_bytes for line in planned}
    assert set(found) == {OTHER}  # the rotation's frequencies


def test_memory_that_several_share_counts_once_and_what_is_new_shows() -> None:
    @dataclass
    class Part:
        q_b_proj: torch.Tensor
        novelty: torch.Tensor

    whole = torch.zeros(100)
    found = held_bytes({"layers": [Part(whole, torch.zeros(5)), Part(whole[:50], torch.zeros(5))]})
    assert found == {"attention": 400, OTHER: 40}


def test_what_comes_beside_tensors_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: 1,000 bytes of tensors with gaps of 60; the allocator holds 1,500, and 200 for graphs; 90 came beside
    it."""

    class Runner:
        graph_bytes = 200

    parts: Any = object.__new__(build_fast.FastParts)
    parts._device, parts._beside_bytes, parts._gap_bytes = torch.device("cuda"), 10, 60

    class Plan:
        class config:
            n_routed_experts = 4

    parts._load_plan = Plan
    monkeypatch.setattr(build_fast, "held_bytes", lambda _: {"routed experts": 500, "KV pool": 500})
    monkeypatch.setattr(build_fast, "taken_now", lambda _: Taken(used_bytes=1_700 + 100, reserved_bytes=1_700))
    runner: Any = Runner
    assert parts.measure(runner) == {
        "routed experts": 400, "shared experts": 100, "KV pool": 500, "allocator gaps": 60, "activations": 440,
        "graphs": 290,
    }  # fmt: skip


def test_this_process_has_a_size(tmp_path: Path) -> None:
    assert taken_now(CPU).used_bytes > 1 << 20
    assert resident_bytes(tmp_path / "absent") == 0
