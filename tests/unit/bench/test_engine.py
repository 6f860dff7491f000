"""The engine's benchmark, on the tiny model on a CPU: every row through the real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparkstral.bench.engine import TARGETS, TINY, Prompts, Sizes, bench_engine, conclude, row_of, work_list
from sparkstral.bench.engine_under_test import EngineUnderTest
from sparkstral.bench.environment import describe_run
from sparkstral.config import EngineConfig
from sparkstral.errors import NotReadyError
from sparkstral.memory.holding import Holding
from sparkstral.model.config import ModelConfig
from tests.support.tekken import write_tekken
from tests.support.tiny_checkpoint import TinyModel, write_native

REAL = ModelConfig(4096, 36, 131072, 32, 1024, 128, 2048, 1e-6, 1e4, 128.0, 32.0, 1.0, 8192, 0.1, 8192, 1048576)


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    torch.manual_seed(0)
    write_native(tmp_path, model=TinyModel(vocab_size=131072))
    write_tekken(tmp_path)
    return EngineConfig(tmp_path, device="cpu", num_threads=1, kv_memory_bytes=1 << 22)


def test_every_row_comes_with_its_repeats(config: EngineConfig, tmp_path: Path) -> None:
    report, output = describe_run("bench engine"), tmp_path / "run.json"
    bench_engine(config, TINY, (), 1000, report, output)
    written = json.loads(output.read_text())
    names = [row["name"] for row in written["rows"]]
    assert names == [
        "loading", "process start to first token", "decode, batch 1", "decode, batch 2", "prefill of 16 tokens",
        "prefill of 32 tokens", "decode behind 40 tokens, batch 1",
    ]  # fmt: skip
    assert written["verdict"] == "ok"
    for row in written["rows"][2:]:
        assert row["verdict"] == "ok", row
        assert len(row["runs"]) == TINY.repeats
        assert row["low"] <= row["value"] <= row["high"]
    assert all("must" not in row for row in written["rows"])  # targets are the full-size model's
    memory = {row["name"]: row for row in written["memory"]}
    assert list(memory) == ["weights", "KV", "workspace", "graphs"]
    assert memory["weights"]["difference"] == memory["KV"]["difference"] == 0
    assert memory["graphs"]["actual_bytes"] is None  # a CPU has none
    assert written["memory_by_line"]["taken_bytes"] > 0


def test_rows_can_be_chosen_and_time_can_run_out(config: EngineConfig, tmp_path: Path) -> None:
    report = describe_run("bench engine")
    bench_engine(config, TINY, ("prefill of 16",), 0, report, tmp_path / "run.json")
    assert [row["verdict"] for row in report["rows"]] == ["ok", "ok", "skipped"]
    assert report["verdict"] == "incomplete"


def test_a_prompt_that_is_refused_costs_its_row_alone(config: EngineConfig, tmp_path: Path) -> None:
    report = describe_run("bench engine")
    too_long = Sizes((1,), 8, few_new=1, many_new=2, prefills=(100_000,), long_context=8, repeats=1)
    bench_engine(config, too_long, (), 1000, report, tmp_path / "run.json")
    verdicts = {row["name"]: row["verdict"] for row in report["rows"]}
    assert verdicts["prefill of 100000 tokens"] == "failed"
    assert verdicts["decode behind 8 tokens, batch 1"] == "ok"
    assert report["verdict"] == "failed"


def test_tokens_are_timed_one_by_one(config: EngineConfig) -> None:
    with EngineUnderTest(config) as engine:
        begin, results = engine.run(Prompts(131072).draw(2, 8), 5)
    for result in results:
        assert len(result.token_ids) == len(result.times) == 5
        assert begin < result.times[0]
        assert result.times == sorted(result.times)
        assert result.num_cached_tokens == 0


def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"The engine ended: .* is empty"), EngineUnderTest(EngineConfig(tmp_path)):
        pass


def test_the_rows_of_the_table_have_their_targets() -> None:
    names = {work.name for work in work_list(REAL, Sizes(), Prompts(131072), Holding())}
    assert set(TARGETS) - names == {"loading", "process start to first token"}


@pytest.mark.parametrize(
    ("name", "unit", "value", "met"),
    [
        ("decode, batch 1", "ms", 1.6, "aim"), ("decode, batch 1", "ms", 2.6, "must"),
        ("decode, batch 1", "ms", 2.7, "missed"), ("prefill of 8192 tokens", "tok/s", 33_000, "aim"),
        ("prefill of 8192 tokens", "tok/s", 23_000, "must"), ("prefill of 8192 tokens", "tok/s", 22_000, "missed"),
    ],
)  # fmt: skip
def test_targets_are_met_or_missed(name: str, unit: str, value: float, met: str) -> None:
    row = row_of(name, unit, [value], is_full_size=True)
    assert row["met"] == met
    assert conclude([row]) == ("failed" if met == "missed" else "ok")


def test_no_two_prompts_begin_alike() -> None:
    prompts = Prompts(131072)
    drawn = prompts.draw(32, 256) + prompts.draw(32, 256)
    assert len({tuple(prompt[:8]) for prompt in drawn}) == 64
    assert min(min(prompt) for prompt in drawn) >= 1000


def test_the_encoder_is_timed_where_it_is_asked_for(tmp_path: Path) -> None:
    write_native(tmp_path, model=TinyModel(vocab_size=131072), with_vision=True)
    write_tekken(tmp_path)
    config = EngineConfig(tmp_path, device="cpu", num_threads=1, kv_memory_bytes=1 << 22)
    report = describe_run("bench engine")
    bench_engine(config, TINY, ("image",), 1000, report, tmp_path / "run.json", with_images=True)
    rows = {row["name"]: row for row in report["rows"][2:]}
    assert list(rows) == ["image of 1540 x 1540", "8 images of 512 x 512"]
    for row in rows.values():
        assert row["verdict"] == "ok", row
        assert len(row["runs"]) == TINY.repeats
        assert row["unit"] == "ms"
