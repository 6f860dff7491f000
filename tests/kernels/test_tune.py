"""Which configuration is chosen, what is written of it, and when it is believed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sparkstral.bench.cases import Case
from sparkstral.bench.cases.setting import absent_setting, shipped_configs
from sparkstral.bench.tune import _WORKLOADS, all_workloads, tune, workloads
from sparkstral.kernels import tuned
from sparkstral.kernels.candidates import _REJECTED, CANDIDATES, axes_of
from sparkstral.kernels.tuned import apply_choices, as_json, changed, holds_for, load_tuned

CAPABILITIES = ((9, 0), (12, 1))
REPOSITORY = Path(__file__).parents[2]
Config = Mapping[str, Any]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_candidate_changes_the_shipped_configuration(capability: tuple[int, int]) -> None:
    configs = shipped_configs(capability)
    for axis in CANDIDATES:
        tried = [changed(configs[axis.operation], changes) for changes in axis.alternatives]
        assert any(config != configs[axis.operation] for config in tried), axis.name


def test_every_axis_has_workloads() -> None:
    assert {(axis.operation, axis.name) for axis in CANDIDATES} == set(_WORKLOADS)
    assert len(all_workloads(absent_setting((9, 0)))) > 300


def fastest(wanted: Config) -> Any:
    """A stand-in for measuring: a case takes less time, the more of `wanted` its configurations have."""

    def measure(case: Case) -> float:
        setting = case.prepare.args[0]  # type: ignore[attr-defined]
        hits = 0
        for path, value in wanted.items():
            config = setting.configs
            for name in path.split("."):
                config = config[name] if isinstance(config, Mapping) else getattr(config, name)
            hits += config == value
        return 10.0 - hits

    return measure


def test_the_fastest_of_an_axis_is_chosen_and_kept_for_the_next() -> None:
    wanted = {"bf16_linear.max_fma_tokens": 2, "bf16_linear.num_programs": 264, "rms_norm.num_warps": 16}
    choices, rows = tune(absent_setting((9, 0)), 1000, fastest(wanted))
    assert choices == {"bf16_linear": {"max_fma_tokens": 2, "num_programs": 264}, "rms_norm": {"num_warps": 16}}
    assert len(rows) == len(CANDIDATES)
    assert all(row["us"] <= row["shipped_us"] for row in rows)


def test_what_is_no_faster_than_noise_is_not_chosen() -> None:
    def measure(case: Case) -> float:
        return 10.0 if case.prepare.args[0].configs["rms_norm"].num_warps == 8 else 9.9  # type: ignore[attr-defined]

    assert tune(absent_setting((9, 0)), 1000, measure)[0] == {}


def test_a_configuration_that_does_not_fit_is_passed_over() -> None:
    def measure(case: Case) -> float:
        config = case.prepare.args[0].configs["mla_prefill"]  # type: ignore[attr-defined]
        if config.keys == 128:
            raise RuntimeError("out of resource: shared memory")
        return 1.0 if config.queries == 64 else 10.0

    choices, rows = tune(absent_setting((9, 0)), 1000, measure)
    assert choices["mla_prefill"]["queries"] == 64
    (row,) = (row for row in rows if row["operation"] == "mla_prefill")
    assert [entry["failed"] for entry in row["alternatives"] if "failed" in entry] == [
        "RuntimeError: out of resource: shared memory"
    ]


def test_without_time_the_shipped_configurations_stay() -> None:
    choices, rows = tune(absent_setting((9, 0)), -1, fastest({}))
    assert choices == {}
    assert {row["verdict"] for row in rows} == {"kept: no time was left of -1 s"}


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def write(path: Path, choices: Config, **other: Any) -> Path:
    document = {**holds_for("NVIDIA H200", (9, 0)), "choices": choices, **other}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.usefixtures("h200")
def test_choices_come_back_from_their_file(tmp_path: Path) -> None:
    base = shipped_configs((9, 0))
    for axis in CANDIDATES:
        for changes in axis.alternatives:
            path = write(tmp_path / "tuned.json", {axis.operation: as_json(changes)})
            assert load_tuned(path) == {axis.operation: changed(base[axis.operation], changes)}


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    "other", [{"source": "0"}, {"triton": "3.5.0"}, {"device": "NVIDIA GB10"}, {"schema_version": 0}]
)
def test_a_file_of_another_source_or_device_is_not_believed(other: Config, tmp_path: Path) -> None:
    assert load_tuned(write(tmp_path / "tuned.json", {"rope": {"num_warps": 2}}, **other)) is None


@pytest.mark.usefixtures("h200")
def test_without_a_file_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_tuned() is None
    path = tuned.default_path("NVIDIA H200")
    path.parent.mkdir(parents=True)
    write(path, {"rope": {"num_warps": 2}})
    assert load_tuned() == {"rope": replace(shipped_configs((9, 0))["rope"], num_warps=2)}


def test_a_part_of_a_configuration_can_be_changed_alone() -> None:
    config = apply_choices({"moe_experts": {"many.1.gate_up.rows": 64}}, (9, 0))["moe_experts"]
    assert config.many[1].gate_up.rows == 64
    assert config.many[1].down == shipped_configs((9, 0))["moe_experts"].many[1].down
    with pytest.raises(TypeError):
        changed(config, {"nothing.here": 1})


def test_workloads_use_the_configuration_that_is_tried() -> None:
    setting = absent_setting((9, 0))
    axis = next(axis for axis in CANDIDATES if axis.operation == "rope")
    tried = setting.with_config("rope", changed(setting.configs["rope"], {"num_warps": 2}))
    (work,) = workloads(axis, tried)
    assert work.case.prepare.args[0].configs["rope"].num_warps == 2  # type: ignore[attr-defined]


def test_what_the_compiler_of_a_gb10_rejects_is_not_tried_there() -> None:
    """As its report says, which names all of it, and nothing else."""
    document = json.loads((REPOSITORY / "docs/performance/candidates_sm_121a.json").read_text())
    failed = {repr((row["operation"], row["changes"])) for row in document["rows"] if row["faults"]}
    rejected = [(operation, changes) for operation, each in _REJECTED[12, 1].items() for changes in each]
    assert {repr((operation, as_json(changes))) for operation, changes in rejected} == failed
    tried = [(axis.operation, changes) for axis in axes_of((12, 1)) for changes in axis.alternatives]
    everything = [(axis.operation, changes) for axis in CANDIDATES for changes in axis.alternatives]
    assert len(tried) == len(everything) - len(rejected)
    assert axes_of((9, 0)) == CANDIDATES
