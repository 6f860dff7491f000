"""The measurement of loading: what it reports, and that it notices wrong bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparkstral.bench import load as bench_load
from sparkstral.bench.load import count_cached_bytes, main, measure_load
from sparkstral.checkpoint.plan import plan_load
from sparkstral.units import GiB
from tests.support.tiny_checkpoint import write_native

CPU = torch.device("cpu")


def test_reports_what_was_loaded(tmp_path: Path) -> None:
    write_native(tmp_path, shards=2, with_vision=True)
    plan = plan_load(tmp_path)
    result = measure_load(tmp_path, CPU, num_runs=2, with_comparison=True)
    assert result.weights_bytes == plan.weights_bytes
    assert (result.num_files, result.num_tensors, result.device) == (2, len(plan.used), "cpu")
    assert len(result.runs) == 2
    assert all(run.seconds > 0 and run.rss_growth_bytes < GiB for run in result.runs)
    assert result.num_compared is not None
    assert result.num_compared > 3
    assert result.differing == []


def test_notices_bytes_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_native(tmp_path)
    fill = bench_load.fill

    def fill_wrongly(buffers, plan, reading):  # type: ignore[no-untyped-def]
        fill(buffers, plan, reading=reading)
        for tensor in buffers.values():
            tensor.zero_()

    monkeypatch.setattr(bench_load, "fill", fill_wrongly)
    assert measure_load(tmp_path, CPU, with_comparison=True).differing
    assert main([str(tmp_path), "--device", "cpu", "--verify"]) == 1


def test_cached_bytes_of_a_file_just_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    assert count_cached_bytes([path]) in (0, 102_400)  # nothing if the system was short of memory just then
    (tmp_path / "empty").touch()
    assert count_cached_bytes([tmp_path / "empty"]) == 0


def test_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_native(tmp_path)
    assert main([str(tmp_path), "--device", "cpu", "--json", "--readers", "2", "--chunk-mib", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_readers"], found["chunk_bytes"], found["num_compared"]) == (2, 1 << 20, None)
    assert main([str(tmp_path), "--device", "cpu"]) == 0
    assert "GB/s" in capsys.readouterr().out


def test_command_says_why_it_cannot_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main([str(tmp_path), "--device", "cpu"])
    assert "is empty" in capsys.readouterr().err


def test_needs_nothing_but_torch_and_numpy() -> None:
    """It, and the tool that writes its input, run on a machine that has no other package of the product."""
    program = (
        "import importlib.abc, sys\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.split('.')[0] in sys.argv[1:]:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import sparkstral.bench.load, tools.synthetic_checkpoint\n"
    )
    texts = ["mistral_common", "llguidance", "transformers", "safetensors", "huggingface_hub"]
    wires = ["msgspec", "zmq", "pydantic", "fastapi", "typer", "rich", "httpx"]
    subprocess.run([sys.executable, "-c", program, *texts, *wires], check=True, cwd=Path(__file__).parents[3])
