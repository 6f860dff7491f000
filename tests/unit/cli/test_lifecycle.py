"""`sparkstral status | stop | logs`: servers that are there, starting, foreign, and gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from sparkstral.api.app import create_app
from sparkstral.cli import lifecycle, running
from sparkstral.config import ServerConfig
from sparkstral.errors import SparkstralError
from sparkstral.types import EnginePhase, EngineStatus
from tests.support.fake_engine import FakeEngine
from tests.support.server import served
from tests.support.tekken import v15_tokenizer
from tests.unit.cli.conftest import Run


def test_a_server_that_is_ready(run: Run, answering: Callable[..., str]) -> None:
    url = answering("Hi")
    body = {"model": "mistral-small-4", "messages": [{"role": "user", "content": "Hi"}]}
    assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
    told, words = run("status", "--url", url, "--json"), run("status", "--url", f"{url}/v1")
    assert (told.code, words.code) == (0, 0)
    document = json.loads(told.out)
    assert (document["ready"], document["phase"]) == (True, "ready")
    assert set(document["counts"]) == set(lifecycle._COUNTS.values())
    assert "tokens of context" in words.out
    assert "0 running, 0 waiting" in words.out


def test_a_server_that_starts_tells_how_long_to_go(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(lambda request: [])
    monkeypatch.setattr(engine, "status", lambda: EngineStatus(EnginePhase.LOADING, 0.75, "3 GiB of 4 GiB"))
    monkeypatch.setattr(engine, "phase_age_s", lambda: 30.0)
    with served(create_app(engine, v15_tokenizer(), ServerConfig())) as url:
        ended = run("status", "--url", url)
    assert ended.code == 1
    assert ended.out == "loading for 30.0 s, 75% done, about 10.0 s left. 3 GiB of 4 GiB\n"


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_where_nobody_is(run: Run, free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    status = run("status", "--url", f"http://127.0.0.1:{free_port}")
    assert status.code == 1
    assert "No server answers" in status.err
    stop = run("stop", "--port", str(free_port))
    assert stop.code == 1
    assert "there is nothing to stop" in stop.err
    monkeypatch.setattr(lifecycle, "_output", lambda command: "")
    logs = run("logs", "--port", str(free_port))
    assert logs.code == 1
    assert "no server runs here" in logs.err


def test_another_program_is_left_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkstral.cli.running.PROC", running.PROC)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = running.find_listener(port)
        assert found is not None
        assert found.process_id == os.getpid()
        monkeypatch.setattr(running, "find_listener", lambda port: running.Running(found.process_id, "other --key x"))
        ended = run("stop", "--port", str(port))
    assert ended.code == 1
    assert "belongs to another program" in ended.err


SERVER = """
import os, signal, socket, subprocess, sys, time
listener = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
held = bytearray(64 << 20)
held[:: 4096] = b"x" * len(held[:: 4096])
def leave(*_):
    child.communicate()
    sys.exit(0)
if sys.argv[1] == "polite":
    signal.signal(signal.SIGTERM, leave)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(listener.getsockname()[1], child.pid, flush=True)
print("a word", file=sys.stderr, flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], tuple[int, int, int]]]:
    """Starts a process called sparkstral that listens and has a child -> (its port, its id, its child's)."""
    started: list[subprocess.Popen[str]] = []

    def start(manners: str) -> tuple[int, int, int]:
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", SERVER, manners, "sparkstral"], stdout=subprocess.PIPE, stderr=log, text=True
            )
        started.append(process)
        assert process.stdout is not None
        port, child = process.stdout.readline().split()
        return int(port), process.pid, int(child)

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_stop_waits_for_the_end_of_all_and_for_the_memory(
    run: Run, start: Callable[[str], tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, process_id, child = start("polite")
    assert set(running.family(process_id)) == {process_id, child}
    held = running.held_bytes((process_id, child))
    assert held > 64 << 20
    amounts = iter([1 << 30, 1 << 30, (1 << 30) + held])  # before; after, not yet and then back
    monkeypatch.setattr(lifecycle.end, "__defaults__", (lambda: next(amounts),))
    ended = run("stop", "--port", str(port), "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["process_id"] == process_id
    assert abs(found["returned_bytes"] - held) < 16 << 20
    assert running.alive((process_id, child)) == ()
    assert next(amounts, None) is None


def test_memory_that_does_not_come_back_is_told(start: Callable[[str], tuple[int, int, int]]) -> None:
    _, process_id, _ = start("polite")
    with pytest.raises(SparkstralError, match="only 0 B came back within 2 s"):
        lifecycle.end(process_id, 2.0, available=lambda: 1 << 30)


def test_a_server_that_does_not_end_is_not_killed(start: Callable[[str], tuple[int, int, int]]) -> None:
    _, process_id, _ = start("stubborn")
    with pytest.raises(SparkstralError, match=rf"still run after 0.3 s .*kill -9 {process_id}"):
        lifecycle.end(process_id, 0.3)
    assert process_id in running.alive((process_id,))


def test_logs_are_shown_where_they_are_kept(
    start: Callable[[str], tuple[int, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, process_id, _ = start("polite")
    monkeypatch.setattr(lifecycle, "_output", lambda command: "")
    assert lifecycle.log_command(7, True, port) == ["tail", "-n", "7", "-F", str(tmp_path / "log")]
    assert running.log_file(process_id) == tmp_path / "log"
    monkeypatch.setattr(lifecycle, "_output", lambda command: "id" if command[0] == "docker" else "")
    assert lifecycle.log_command(7, False, port) == ["docker", "logs", "--tail", "7", "sparkstral"]
    monkeypatch.setattr(lifecycle, "_output", lambda command: "enabled" if "is-enabled" in command else "")
    command = lifecycle.log_command(7, True, port)
    assert command == ["journalctl", "--unit", "sparkstral.service", "--lines", "7", "--no-pager", "--follow"]
    os.kill(process_id, signal.SIGTERM)
