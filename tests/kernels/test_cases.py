"""The list that verify, bench and tune share: it covers every kernel, and would not pass with a kernel 1 % off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sparkstral.kernels
from sparkstral.bench import verify
from sparkstral.bench.cases import Case, all_cases, attention, dense, draws, embedding, experts, kernel_cases, vision
from sparkstral.bench.cases.case import compare, faults
from sparkstral.bench.cases.setting import Setting, small_setting
from sparkstral.bench.environment import write_report
from sparkstral.bench.kernels import measure
from sparkstral.bench.run import Wanted, run_case
from sparkstral.errors import ConfigError

CHECKS = Wanted(checks=True, times=False, seconds=1000)
SETTING = small_setting()
# The interpreter takes 15 s for each of these.
SLOW = ("moe_experts: block, 3 tokens", "moe_experts: block, 4 tokens")
CASES = [case for case in all_cases(SETTING) if case.title not in SLOW]


def test_every_kernel_has_a_checked_case() -> None:
    folders = {file.parent.name for file in Path(sparkstral.kernels.__path__[0]).glob("*/triton_kernel.py")}
    assert {case.operation for case in kernel_cases(SETTING)} == folders
    assert folders == verify.KERNELS
    for case in CASES:
        if case.operation in folders:
            assert case.prepare(0).check is not None, case.title


@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_a_case_runs_and_its_check_passes(case: Case) -> None:
    torch.manual_seed(0)
    row = run_case(case, CHECKS, None)
    assert row["verdict"] == "ok", row
    if case.operation not in ("layer", "library"):
        assert row["bytes"] > 0


def scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Its result 1 % too large."""

    def perturbed(*arguments: Any, **more: Any) -> Any:
        return function(*arguments, **more) * 1.01

    return perturbed


def in_place(function: Callable[..., Any], target: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """What it writes 1 % too large."""

    def perturbed(*arguments: Any, **more: Any) -> Any:
        result = function(*arguments, **more)
        target(*arguments).mul_(1.01)
        return result

    return perturbed


def other_tokens(function: Callable[..., Any]) -> Callable[..., Any]:
    def perturbed(*arguments: Any, **more: Any) -> Any:
        token_ids, status = function(*arguments, **more)
        return token_ids + 1, status

    return perturbed


def one_row_off(function: Callable[..., Any]) -> Callable[..., Any]:
    def perturbed(*arguments: Any, **more: Any) -> Any:
        x, *rest = function(*arguments, **more)
        return x * 1.01, *rest

    return perturbed


PERTURBED = [
    (embedding.embed_kernel, "embed", one_row_off, "embed: 3 tokens"),
    (dense.linear_kernel, "bf16_linear", scaled, "bf16_linear: a, 3 tokens"),
    (dense.fp8_kernel, "fp8_linear", scaled, "fp8_linear: a, 3 tokens"),
    (dense.rms_norm_kernel, "add_rms_norm", scaled, "rms_norm: after o, 2 tokens"),
    (dense.latent_write_kernel, "write_latents", scaled, "latent_write: 2 tokens"),
    (dense.decode_kernel, "absorb", scaled, "mla_decode: absorb, 2 tokens"),
    (dense.rope_kernel, "turn_queries", lambda f: in_place(f, lambda q, *_: q), "rope: turn queries, 40 tokens"),
    (attention.decode_kernel, "mla_decode", scaled, "mla_decode: ragged, 1 to 3 queries"),
    (attention.prefill_kernel, "mla_prefill", scaled, "mla_prefill: 20 of 150"),
    (vision.vision_kernel, "vision_attention", scaled, "vision_attention: 3 images"),
    (draws.sampling_kernel, "sample", other_tokens, "sampling: all kinds"),
    (draws.penalties_kernel, "change_logits", scaled, "penalties: 3 rows"),
    (draws.token_logprobs_kernel, "token_logprobs", lambda f: lambda *a, **o: f(*a, **o) + 1, "token_logprobs: 3 rows"),
    (experts.linear_kernel, "nvfp4_linear", scaled, "nvfp4_linear: 64 x 64, 1 tokens"),
    (experts.linear_kernel, "reorder_", lambda f: lambda x: f(x) + 1, "nvfp4_linear: reorder"),
    (experts.triton_kernel, "moe_block", lambda f: in_place(f, lambda *a: a[6]), "moe_experts: block, 5 tokens"),
    (experts, "route_many", lambda f: in_place(f, lambda *a: a[4].weights), "moe_route: 5 tokens"),
]


@pytest.mark.parametrize(("module", "name", "perturb", "title"), PERTURBED, ids=[each[3] for each in PERTURBED])
def test_a_kernel_that_is_1_percent_off_is_caught(
    module: Any, name: str, perturb: Any, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, perturb(getattr(module, name)))
    (case,) = (case for case in CASES if case.title == title)
    torch.manual_seed(0)
    row = run_case(case, CHECKS, None)
    assert row["verdict"] == "failed"
    whole = verify.conclude({"rows": [{"operation": case.operation, "name": case.name, **row}]})
    assert whole["verdict"] == "failed"


def test_every_kernel_is_perturbed() -> None:
    assert {title.split(":")[0] for *_, title in PERTURBED} == verify.KERNELS


def test_the_worst_elements_are_named() -> None:
    exact = torch.zeros(3, 4, dtype=torch.float64) + 1
    ours = exact.float()
    ours[2, 1] = 1.5
    ours[0, 3] = float("nan")
    found = compare(ours, exact.bfloat16() * 1.01, exact)
    assert found["worst"][0]["index"] == [0, 3]
    assert found["worst"][1] == {"index": [2, 1], "got": 1.5, "expected": 1.0}
    assert "not finite" in faults(found)


def test_what_is_not_finite_is_still_json(tmp_path: Path) -> None:
    exact = torch.ones(4, dtype=torch.float64)
    found = compare(exact.float() * float("nan"), exact.bfloat16() * 1.01, exact)
    write_report(tmp_path / "run.json", {"rows": [found]})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    (row,) = json.loads((tmp_path / "run.json").read_text(), parse_constant=refuse)["rows"]
    assert row["error_ratio"] == row["worst"][0]["got"] == "nan"


def test_a_case_that_raises_fails_alone() -> None:
    def broken(_: int) -> Any:
        raise ValueError("no such tile")

    row = run_case(Case("rms_norm", "x", broken), CHECKS, None)
    assert row["verdict"] == "failed"
    assert row["faults"] == ["ValueError: no such tile"]


def test_verdicts_of_the_whole() -> None:
    good = [{"operation": name, "name": "x", "verdict": "ok", "faults": []} for name in verify.KERNELS]
    skipped = {"operation": "rope", "name": "y", "verdict": "skipped", "faults": ["no time was left of 1 s"]}
    undecided = {"verdict": "undecided", "sentence": "random"}
    assert verify.conclude({"rows": good}) == {"verdict": "ok", "reasons": []}
    assert verify.conclude({"rows": good[1:]})["verdict"] == "incomplete"
    assert verify.conclude({"rows": [*good, skipped]})["verdict"] == "incomplete"
    assert verify.conclude({"rows": good, "loss": undecided})["verdict"] == "incomplete"
    assert verify.conclude({"rows": good, "loss": {"verdict": "failed", "sentence": "s"}})["verdict"] == "failed"
    assert verify.conclude({"rows": [], "reasons": [verify.NO_GPU]})["verdict"] == "incomplete"


def test_a_run_writes_what_it_found(tmp_path: Path) -> None:
    report = measure(("rope",), CHECKS, 0, None, True, tmp_path / "run.json")
    assert report["verdict"] == "ok"
    assert (tmp_path / "run.json").stat().st_size > 500
    assert [row["verdict"] for row in report["rows"]] == ["ok"]
    late = measure(("rope",), replace(CHECKS, seconds=-1), 0, None, True, tmp_path / "run.json")
    assert [row["verdict"] for row in late["rows"]] == ["skipped"]
    with pytest.raises(ConfigError, match="no such kernel"):
        measure(("no such kernel",), CHECKS, 0, None, True, tmp_path / "run.json")


def test_the_sizes_are_the_models() -> None:
    real = Setting("meta", False, torch.bfloat16, {})
    assert dense.weight_shapes(real) == dense.linear_kernel.SHAPES


BARE = """
import runpy, sys
for name in ("typer", "rich", "mistral_common", "pydantic", "fastapi", "msgspec", "zmq", "llguidance", "httpx"):
    sys.modules[name] = None
sys.argv = ["kernels", "--small", "--check", "--only", "rope", "--json", sys.argv[1]]
runpy.run_module("sparkstral.bench.kernels", run_name="__main__")
"""


def test_kernels_are_measured_with_torch_and_triton_alone(tmp_path: Path) -> None:
    """As on a machine that was lent for minutes: nothing else is installed there."""
    output = tmp_path / "run.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BARE, str(output)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(output.read_text())["verdict"] == "ok"
