"""The commands around measurements: tables, JSON, exit codes, and the process that measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkstral.cli import tables
from sparkstral.cli.measured import run_measured
from tests.unit.cli.conftest import Run

HEAD = {"device": "NVIDIA H200", "commit": "0123456789abcdef", "versions": {"torch": "2.11", "cuda": None}}
BANDWIDTH = {"read_bytes_per_s": 4.48e12, "copy_bytes_per_s": 4.1e12}


def kernel_row(us: float, **more: Any) -> dict[str, Any]:
    return {
        "operation": "rms_norm", "name": "after o, 1 tokens", "variant": "shipped", "us": us, "us_low": us * 0.99,
        "us_high": us * 1.01, "bytes": 1e6, "launches": 1, "gb_per_s": 1e3, "bandwidth_share": 0.2, "error_ratio": 1.1,
        "verdict": "ok", "faults": [], **more,
    }  # fmt: skip


def kernels(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "bench kernels", **HEAD, "bandwidth": BANDWIDTH, "rows": list(rows)}


def write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def test_compare_says_what_is_slower_by_its_exit_code(run: Run, tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{us}.json", kernels(kernel_row(us))) for us in (10.0, 12.0))
    slower = run("bench", "compare", a, b, "--json")
    assert slower.code == 1
    assert json.loads(slower.out)["rows"][0]["verdict"] == "slower"
    same = run("bench", "compare", a, a)
    assert same.code == 0
    assert "within noise" in same.out


def test_project_labels_what_it_prints(run: Run, tmp_path: Path) -> None:
    ended = run("bench", "project", write(tmp_path / "run.json", kernels(kernel_row(10.0))), "--json")
    assert ended.code == 0
    document = json.loads(ended.out)
    assert document["label"] == "projected, not measured"
    assert document["from"]["device"] == "NVIDIA H200"
    assert "projected, not measured" in run("bench", "project", str(tmp_path / "run.json")).out


@pytest.mark.parametrize("content", [[], {"kind": "bench engine", "rows": []}, {}])
def test_a_file_that_is_no_run_is_a_usage_error(content: Any, run: Run, tmp_path: Path) -> None:
    ended = run("bench", "project", write(tmp_path / "x.json", content))
    assert ended.code == 2
    assert "is no run of" in ended.err


def test_tables_show_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    worst = [{"index": [1], "got": 2, "expected": 3}]
    bad = kernel_row(1.0, verdict="failed", error_ratio="nan", faults=["error 3.1 times"], worst=worst)
    verify = kernels(bad) | {"verdict": "failed", "reasons": ["rms_norm: error 3.1 times"]}
    tables.print_verify(verify)
    shown = capsys.readouterr().out
    assert "reads 4,480 GB/s" in shown
    assert "at [1]: got 2, expected 3" in shown
    assert "verdict: failed" in shown


def test_tables_of_other_documents(capsys: pytest.CaptureFixture[str]) -> None:
    variant = {
        "operation": "rope", "name": "queries", "registers": 40, "shared_bytes": 0, "spill_bytes": 8, "needs": ["mma"],
        "faults": ["8 bytes of registers spill"],
    }  # fmt: skip
    tables.print_build({"target": "sm_121a", "triton": "3.9", "seconds": 1.0, "rows": [variant], "pack": "packs/x"})
    engine = {"name": "decode, batch 1", "value": 2.0, "unit": "ms", "low": 1.9, "high": 2.1, "bytes": 5.68e9,
              "bandwidth_share": 0.63, "peer": 5.24, "must": 2.6, "aim": 1.7, "met": "must", "verdict": "ok",
              "faults": []}  # fmt: skip
    skipped = {"name": "prefill", "verdict": "skipped", "faults": ["no time was left of 1 s"]}
    tables.print_engine({**HEAD, "rows": [engine, skipped]})
    tune = {"operation": "rope", "axis": "warps", "shipped_us": 3.0, "us": 2.5, "verdict": "17 % faster"}
    tables.print_tune({**HEAD, "seconds": 80.0, "rows": [tune], "output": "tuned.json"})
    shown = capsys.readouterr().out
    for word in ("8 bytes of registers spill", "packs/x", "must", "no time was left", "tuned.json"):
        assert word in shown


MEASURE = """
import sys
print("1/2 first", flush=True)
print("a line of another kind", flush=True)
if "--fail" in sys.argv:
    sys.exit("sparkstral: no GPU")
open(sys.argv[sys.argv.index("--json") + 1], "w").write('{"rows": []}')
sys.exit(1)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "measuring_stand_in.py").write_text(MEASURE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "measuring_stand_in"


def test_what_was_measured_comes_with_its_exit_code(module: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_measured(module, []) == ({"rows": []}, 1)
    assert "1/2 first" in capfd.readouterr().err


def test_a_measurement_that_wrote_nothing_ends_the_program(module: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_measured(module, ["--fail"])
    assert ended.value.code == 1
    assert "no GPU" in capfd.readouterr().err


def test_a_target_without_kernels_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_measured("sparkstral.kernels.build", ["--target", "sm_80"])
    assert ended.value.code == 2
    assert "the kernels have configurations for sm_121a, sm_90a" in capfd.readouterr().err
