"""`sparkstral eval nll | compare | precision`: which process measures what, and what is made of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sparkstral.bench.settings import SETTINGS
from sparkstral.cli import eval_precision
from sparkstral.evals.demo import DemoResult, Row
from tests.unit.cli.conftest import Run

FIGURES: dict[str, Any] = {
    "num_positions": 3, "num_counted": 2, "loss_first": 1.0, "loss": 1.25, "kl_mean": 0.125,
    "kl_quantiles": {"0.5": 0.1, "0.9": 0.2, "0.99": 0.3}, "kl_max": 0.5, "top1_agreement": 0.75,
}  # fmt: skip
WORST = {
    "text": "short", "position": 2, "kl": 0.5, "before": "the cat", "token": " sat", "likeliest_first": " sat",
    "likeliest": " ran",
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of the measuring process, which is not started."""
    found: list[str] = []

    def run_measured(module: str, arguments: list[str]) -> tuple[dict[str, Any], int]:
        assert module == "sparkstral.bench.precision"
        found[:] = arguments
        names = [value for flag, value in pairwise(arguments) if flag == "--setting"]
        rows = [
            {"setting": name, "verdict": "ok", "faults": [], **FIGURES, "texts": [{"text": "short", **FIGURES}],
             "worst": [WORST]}
            for name in names[1:]
        ]  # fmt: skip
        return {
            "device": "cpu", "versions": {}, "checkpoint": "demo", "compared_with": names[0], "rows": rows,
            "left_out": {"w4a4": "no such products"}, "plot_svg": "<svg/>", "verdict": "ok",
        }, 0  # fmt: skip

    monkeypatch.setattr(eval_precision, "run_measured", run_measured)
    return found


def test_compare_shows_the_worst_positions(run: Run, asked: list[str]) -> None:
    ended = run("eval", "compare", "stored", "kv-fp8", "--length", "500", "--length", "700", "--device", "cpu")
    assert ended.code == 0
    assert asked[1:] == [
        "--device", "cpu", "--setting", "stored", "--setting", "kv-fp8", "--length", "500", "--length", "700"
    ]  # fmt: skip
    assert "' ran'" in ended.out
    assert "w4a4 is left out" in ended.out


def test_nll_is_of_two_settings(run: Run, asked: list[str], tmp_path: Path) -> None:
    ended = run("eval", "nll", "--against", "dense-fp8", "--text", str(tmp_path / "a.txt"), "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["rows"][0]["setting"] == "dense-fp8"
    assert asked[-2:] == ["--text", str(tmp_path / "a.txt")]


@pytest.mark.parametrize(
    ("name", "said"), [("w4a4", "no products of FP4"), ("kvfp8", "is no setting. They are: stored")]
)
def test_a_setting_that_is_not_there(run: Run, asked: list[str], name: str, said: str) -> None:
    ended = run("eval", "compare", "stored", name)
    assert ended.code == 2
    assert said in ended.err
    assert asked == []


def test_a_setting_that_loses_a_bar_fails(
    run: Run, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    def ask(*_: Any, dense: str, kv: str, **__: Any) -> DemoResult:
        held.append((dense, kv))
        num_right = 8 if (dense, kv) == ("bf16", "fp8") else 10
        return DemoResult((Row("lists", "", 0.9, num_right, 10),), (), 100, 1.0)

    monkeypatch.setattr(eval_precision.eval_demo, "ask", ask)
    output = tmp_path / "found.json"
    ended = run("eval", "precision", "--output", str(output))
    assert ended.code == 1
    assert held == [("bf16", "bf16"), ("fp8", "bf16"), ("bf16", "fp8"), ("fp8", "fp8")]
    document = json.loads(output.read_text())
    verdicts = {row["setting"]: (row["verdict"], row["faults"]) for row in document["rows"]}
    assert set(verdicts) == set(SETTINGS) - {"stored"}
    assert verdicts["kv-fp8"] == ("failed", ["lost: lists: 8 of 10, the bar is 90%"])
    assert verdicts["fp8"] == ("ok", [])
    assert document["skills"]["stored"][0]["share"] == 1.0
    assert (tmp_path / "found.svg").read_text() == "<svg/>"
