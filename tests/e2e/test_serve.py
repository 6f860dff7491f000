"""`sparkstral serve` as a program: how it starts, what it writes where, and how it ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.tekken import VOCAB_SIZE, write_tekken
from tests.support.tiny_checkpoint import TinyModel, write_native

Serve = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_native(tmp_path, TinyModel(vocab_size=VOCAB_SIZE))
    write_tekken(tmp_path)
    return tmp_path


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts `sparkstral serve` with small settings on a free port; what still runs at the end is killed."""
    with ExitStack() as stack:

        def serve(*arguments: str) -> subprocess.Popen[str]:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            small = ["--device", "cpu", "--threads", "1", "--max-model-len", "512", "--kv-memory", "8MiB"]
            command = [sys.executable, "-c", "from sparkstral.cli.app import main; main()", "serve"]
            program = subprocess.Popen(
                [*command, "--port", str(port), *small, *arguments],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(program)
            stack.callback(program.kill)
            return program

        yield serve


def test_with_json_all_that_it_writes_is_json(serve: Serve, model: Path) -> None:
    program = serve("--json", str(model))
    assert program.stdout is not None
    ready = json.loads(program.stdout.readline())
    assert ready["max_model_len"] == 512
    assert ready["memory"]["taken_bytes"] > 0
    (card,) = httpx.get(f"{ready['url']}/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == (ready["model"], 512)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert out == ""
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert any("memory plan" in message for message in messages)


def test_for_people_it_prints_a_request_that_works(serve: Serve, model: Path) -> None:
    program = serve(str(model))
    assert program.stderr is not None
    command = next(line.strip() for line in program.stderr if line.strip().startswith("curl "))
    _, url, _, header, _, body = shlex.split(command)
    answer = httpx.post(url, headers=dict([header.split(": ")]), content=body, timeout=60)
    assert answer.json()["choices"][0]["finish_reason"] in ("stop", "length")
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    assert program.returncode == 130


def test_a_model_that_cannot_be_loaded_ends_it_with_the_reason(serve: Serve, model: Path) -> None:
    weights = next(model.glob("consolidated*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-10])
    program = serve(str(model))
    _, err = program.communicate(timeout=60)
    assert program.returncode == 1
    last = err.splitlines()[-1]
    assert last.startswith("sparkstral: ")
    assert "truncated" in last
    assert err.count("truncated") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--max-model-len", "2000000"], "--max-model-len is 2,000,000"),  # found where the checkpoint is read
        (["--max-num-batched-tokens", "16", "--max-num-seqs", "16"], "--max-num-batched-tokens to 17"),
    ],
)
def test_flags_that_cannot_be_had_are_a_usage_error_said_once(
    serve: Serve, model: Path, flags: list[str], reason: str
) -> None:
    program = serve(str(model), *flags)
    _, err = program.communicate(timeout=60)
    assert program.returncode == 2
    assert err.count(reason) == 1
    assert err.splitlines()[-1].startswith("sparkstral: ")


def test_sigterm_under_load_ends_every_answer_in_words_and_leaves_nothing(serve: Serve, model: Path) -> None:
    program = serve("--json", "--drain-s", "0.2", str(model))
    assert program.stdout is not None
    url = json.loads(program.stdout.readline())["url"]
    (engine,) = psutil.Process(program.pid).children()
    body = {"messages": [{"role": "user", "content": "Go on."}], "temperature": 1, "stream": True}
    with ThreadPoolExecutor(8) as pool:
        answers = [
            pool.submit(httpx.post, f"{url}/v1/chat/completions", json={**body, "seed": seed}, timeout=60)
            for seed in range(8)
        ]
        while httpx.get(f"{url}/health").json()["stats"]["num_running"] < 8:
            assert not all(answer.done() for answer in answers), "too fast to be stopped"
        program.send_signal(signal.SIGTERM)
        for answer in (answer.result() for answer in answers):
            if answer.status_code == 503:  # it had not begun to answer
                assert answer.json()["error"]["code"] == "engine_dead"
                continue
            *_, last, end = answer.text.split("\n\n")
            assert end == ""
            assert last == "data: [DONE]" or json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_dead"
    program.communicate(timeout=60)
    assert program.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert not engine.is_running()


def test_a_port_that_is_taken_is_a_usage_error_with_another_to_take(serve: Serve, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        program = serve(str(model), "--port", str(taken.getsockname()[1]))
        _, err = program.communicate(timeout=60)
    assert program.returncode == 2
    assert err.splitlines()[-1].startswith("sparkstral: Cannot listen on 127.0.0.1:")
    assert "--port" in err
