"""The fault table's rows about files: what a user meets, with exit code and remedy, through the commands themselves.

Those about the Hub (wrong hash, full disk, unreachable) are in tests/unit/hub/test_download.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_hub import REPO, fake_hub
from tests.support.tekken import write_tekken
from tests.support.tiny_checkpoint import write_native
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write_native(tmp_path / "model", shards=3)
    write_tekken(folder)
    return folder


COMMANDS = (("inspect", "checkpoint"), ("doctor", "--port", "1"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shard_that_did_not_come(run: Run, model: Path, command: tuple[str, ...]) -> None:
    sorted(model.glob("*.safetensors"))[1].rename(model / "consolidated-00002-of-00003.safetensors.incomplete")
    ended = run(command[0], *command[1:], str(model)) if command[0] == "doctor" else run(*command, str(model))
    assert ended.code == 1
    assert "lacks 1 of the 3 weight files" in ended.out + ended.err
    assert "download" in ended.out + ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shard_of_which_half_came(run: Run, model: Path, command: tuple[str, ...]) -> None:
    shard = sorted(model.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    ended = run(*command, str(model))
    assert ended.code == 1
    assert f"{shard} is truncated" in ended.out + ended.err


def test_a_model_without_its_tokenizer(run: Run, model: Path) -> None:
    (model / "tekken.json").unlink()
    ended = run("serve", str(model), "--port", "1024", "--device", "cpu")
    assert ended.code == 1
    assert ended.err.startswith(f"sparkstral: {model} has no tekken.json")
    assert "hf download" in ended.err
    assert ended.err.count("\n") == 1


def test_a_cache_that_cannot_be_written(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_hub(model, monkeypatch, Path("/sys/none")) as hub:
        ended = run("download", REPO)
    assert ended.code == 1
    assert ended.err.startswith("sparkstral: /sys/none cannot be written")
    assert "HF_HUB_CACHE=DIR" in ended.err
    assert hub.names_sent() == []
