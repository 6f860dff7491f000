"""The fault table's starts that come to nothing: exit code, and one sentence with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkstral.engine.device_lock import DeviceLock
from tests.support.crowded_child import DEVICE
from tests.support.tekken import VOCAB_SIZE, write_tekken
from tests.support.tiny_checkpoint import TinyModel, write_native

Serve = Callable[..., tuple[int, str]]
PROGRAM = """
import sys
import sparkstral.engine.process as process
process.CHILD_MODULE = "tests.support.crowded_child"
from sparkstral.cli.app import main
main()
"""


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Runs `sparkstral serve` to its end -> (exit code, the last line that it said)."""
    model = tmp_path / "model"
    write_native(model, TinyModel(vocab_size=VOCAB_SIZE))
    write_tekken(model)

    def serve(crowded: str, *arguments: str) -> tuple[int, str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
            "CROWDED": crowded,
            "XDG_RUNTIME_DIR": str(tmp_path),
        }
        command = [sys.executable, "-c", PROGRAM, "serve", str(model), "--port", "1024", "--threads", "1", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr.splitlines()[-1]

    return serve


def test_a_second_instance_is_told_who_was_first(serve: Serve, tmp_path: Path) -> None:
    lock = DeviceLock.take(DEVICE, 8002, tmp_path / "sparkstral")
    assert lock is not None
    code, last = serve("device")
    assert code == 1
    assert f"An engine of yours has {DEVICE} already: process {os.getpid()}, which serves port 8002" in last
    assert f"kill {os.getpid()}" in last
    lock.release()


def test_too_little_memory_is_told_with_the_sum_and_who_holds_the_rest(serve: Serve) -> None:
    code, last = serve("memory")
    assert code == 1
    assert last.startswith("sparkstral: Of 64.00 MiB available (MemAvailable)")
    assert "Another large model must be stopped first: python vllm (pid 4242, 66.00 GiB of host memory)" in last
    assert "PyTorch sees no GPU, so this is the CPU's plan" in last
