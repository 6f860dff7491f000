"""The plan beside what the recorded runs on an H200 found: the table in docs/memory.md."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkstral.checkpoint.facts import released_model
from sparkstral.checkpoint.held import held_lines
from sparkstral.kv_cache.layout import KvLayout
from sparkstral.memory.fast_workspace import GB10_KERNELS, FastWorkspace
from sparkstral.memory.holding import Holding
from sparkstral.memory.host import host_lines
from sparkstral.memory.plan import PlanRequest, draw_plan
from sparkstral.memory.probe import AvailableMemory
from sparkstral.model.config import LATENT_WIDTH
from sparkstral.units import GiB

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs" / "memory.md").read_text()
H200_KERNELS = replace(GB10_KERNELS, max_splits=128)


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "performance" / name).read_text())
    return found


def test_what_was_recorded_is_within_2_percent_of_the_plan() -> None:
    engine, load = recorded("h200_engine.json"), recorded("h200_load.json")
    model, settings = released_model(), engine["engine"]
    config = replace(model.config, vision=None)  # that engine read text alone
    weights = held_lines(config, model.forms, Holding(), model.source)
    layout = KvLayout(config.num_hidden_layers, LATENT_WIDTH, 2, settings["block_size_tokens"])
    workspace = FastWorkspace(
        config, H200_KERNELS, 2, settings["max_num_batched_tokens"], settings["max_num_seqs"], num_graphs=18
    )
    plan = draw_plan(PlanRequest(weights, workspace, layout), AvailableMemory(engine["memory_bytes"], "memory_bytes"))
    loaded = sum(line.num_bytes for line in weights if line.name not in ("w_uk, w_uv", "allocator gaps"))
    pairs = {
        "weights": (loaded, load["weights_bytes"]),
        "blocks": (plan.num_blocks - layout.num_null_blocks, engine["engine_info"]["num_usable_blocks"]),
        "length": (plan.max_model_len, engine["engine_info"]["max_model_len"]),
    }
    for name, (planned, measured) in pairs.items():
        assert abs(planned / measured - 1) < 0.02, name
        assert len(re.findall(f"{planned:,}", DOC)) >= 2, f"docs/memory.md has other {name}"
    for row in engine.get("memory", ()):  # of later runs
        assert row["name"] not in ("weights", "KV") or abs(row["difference"]) < 0.02, row
    not_recorded = sum(line.num_bytes for line in workspace.lines(plan.max_model_len))
    not_recorded += next(line.num_bytes for line in host_lines(is_live=True) if line.name == "CUDA context")
    assert f"about {not_recorded / GiB:.0f} GiB | not recorded" in DOC


def test_the_page_cache_of_the_plan_is_what_loading_left() -> None:
    line = next(line for line in host_lines(is_live=False) if line.name == "page cache")
    assert line.num_bytes == max(run["page_cache_growth_bytes"] for run in recorded("h200_load.json")["runs"])
