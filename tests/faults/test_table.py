"""The fault table: what goes wrong, and what a client, its neighbours and the next client see of it.

One server over one engine process with fault points (tests/support/faulty_child), as users run it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sparkstral.api.app import create_app
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import EngineConfig, ServerConfig
from sparkstral.engine.process import ProcessEngineClient
from sparkstral.engine.supervision import Patience
from sparkstral.memory.pressure import PressureGuard, Thresholds
from sparkstral.memory.probe import HostMemory
from sparkstral.units import GiB
from tests.support.faulty_child import HANGING_NAME, Fault
from tests.support.server import served
from tests.support.tekken import VOCAB_SIZE, write_tekken
from tests.support.tiny_checkpoint import TinyModel, write_native

LIMIT_S = 60.0
MESSAGES = [{"role": "user", "content": "Tell me of the tides."}]
LONG = [{"role": "user", "content": "Tell me of the tides at Husum. " * 50}]


class Host:
    """What the server believes of the host's memory."""

    total_bytes = 100 * GiB

    def __init__(self) -> None:
        self.available_bytes = 50 * GiB

    def read(self) -> HostMemory:
        return HostMemory(self.total_bytes, self.available_bytes)


class Server:
    def __init__(self, url: str, engine: ProcessEngineClient, host: Host) -> None:
        self.url = url
        self.engine = engine
        self.host = host

    def post(self, **body: Any) -> httpx.Response:
        body = {"messages": MESSAGES, "temperature": 1, "max_tokens": 12, **body}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=LIMIT_S)

    def stats(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.url}/health").json()["stats"])

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until `condition` holds for the body of /health, and return that."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            health = httpx.get(f"{self.url}/health").json()
            if condition(health):
                return dict(health)
            time.sleep(0.01)
        raise AssertionError(f"never seen: {health}")

    def until_ready(self) -> None:
        self.until(lambda health: health["phase"] == "ready")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    write_native(folder, TinyModel(vocab_size=VOCAB_SIZE))
    write_tekken(folder)
    config = EngineConfig(
        folder, device="cpu", max_model_len=1024, kv_memory_bytes=8 << 20, num_threads=1, max_num_seqs=4,
        max_num_batched_tokens=16,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]))
        patch.setattr("sparkstral.engine.process.CHILD_MODULE", "tests.support.faulty_child")
        patch.setattr("sparkstral.engine.process.TICK_S", 0.05)
        host = Host()
        guard = PressureGuard(host.read, Thresholds.of(host.total_bytes))
        engine = ProcessEngineClient(config, patience=Patience(first_delay_s=0.01, max_failures=9), guard=guard)
        with served(create_app(engine, ChatTokenizer.load(folder), ServerConfig())) as url:
            server = Server(url, engine, host)
            server.until_ready()
            yield server


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object, whole or as the last event of a stream; OpenAI's shape."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        error = json.loads(data[-1])["error"]
    else:
        error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Fault.FORWARD_RAISES, 500, "internal_error"),
        (Fault.ALLOCATION_FAILS, 500, "internal_error"),
        (Fault.NAN_ROW, 500, "numerics"),
    ],
)
def test_a_step_that_fails_is_told_to_those_in_it_and_the_engine_goes_on(
    server: Server, fault: Fault, status: int, code: str, stream: bool
) -> None:
    process_id = server.engine.process_id
    answer = server.post(seed=fault, stream=stream)
    assert answer.status_code == (200 if stream else status)  # a stream had begun
    error = error_of(answer)
    assert error["code"] == code
    assert "secret" not in error["message"]
    assert server.post(seed=1).status_code == 200
    assert server.engine.process_id == process_id
    stats = server.stats()
    assert (stats["num_running"], stats["num_waiting"]) == (0, 0)


def test_a_sick_row_disturbs_no_other(server: Server) -> None:
    alone = server.post(seed=5, max_tokens=40).json()["choices"]
    before = server.stats()["num_sick_requests"]
    with ThreadPoolExecutor() as pool:
        healthy = [pool.submit(server.post, seed=5, max_tokens=40) for _ in range(2)]
        sick = pool.submit(server.post, seed=Fault.NAN_ROW, max_tokens=40)
        assert error_of(sick.result())["code"] == "numerics"
        for answer in healthy:
            assert answer.result().json()["choices"] == alone
    assert server.stats()["num_sick_requests"] == before + 1


@pytest.mark.parametrize(("fault", "reason"), [(Fault.DEVICE_LOST, "illegal memory"), (Fault.KILLED, "SIGKILL")])
def test_an_engine_that_is_lost_is_told_to_all_and_replaced(server: Server, fault: Fault, reason: str) -> None:
    process_id = server.engine.process_id
    with ThreadPoolExecutor() as pool:
        others = [
            pool.submit(server.post, seed=Fault.SLOW, max_tokens=500, stream=stream) for stream in (False, True)
        ]
        server.until(lambda health: health["stats"]["num_running"] == 2)
        for answer in (server.post(seed=fault), *(other.result() for other in others)):
            error = error_of(answer)
            assert (error["code"], error["type"]) == ("engine_dead", "service_unavailable")
            assert reason in error["message"]
    refused = server.post()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert error_of(refused)["code"] == "engine_not_ready"
    assert httpx.get(f"{server.url}/livez").status_code == 200
    assert httpx.get(f"{server.url}/readyz").status_code == 503
    server.until_ready()
    assert server.engine.process_id != process_id
    assert server.post().status_code == 200


def test_a_grammar_that_compiles_for_ever_fails_its_request_alone(server: Server) -> None:
    schema = {"type": "object", "properties": {HANGING_NAME: {"type": "boolean"}}}
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}}
    with ThreadPoolExecutor() as pool:
        hanging = pool.submit(server.post, response_format=form)
        assert server.post().status_code == 200
        assert hanging.result().status_code == 400
        assert error_of(hanging.result())["code"] == "grammar"


def test_when_memory_is_short_caches_are_dropped_and_then_new_requests_refused_while_others_go_on(
    server: Server,
) -> None:
    process_id = server.engine.process_id
    assert server.post(messages=LONG, max_tokens=1).status_code == 200
    assert server.stats()["num_cached_blocks"] > 0
    server.host.available_bytes = 5 * GiB
    health = server.until(lambda health: health["stats"]["num_cached_blocks"] == 0)
    assert {line["name"] for line in health["info"]["memory"]["lines"]} >= {"attention", "KV pool", "routed experts"}
    assert health["memory"] == {"stage": "shrink", "level": 1, "available_bytes": 5 * GiB}
    assert server.post().status_code == 200
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.post, seed=Fault.SLOW, max_tokens=40)
        server.until(lambda health: health["stats"]["num_running"] == 1)
        server.host.available_bytes = 3 * GiB
        server.until(lambda health: health["phase"] == "short of memory")
        refused = server.post()
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        error = error_of(refused)
        assert (error["type"], error["code"]) == ("service_unavailable", "engine_not_ready")
        assert "3.00 GiB of memory are available on this host and new requests need 4.00 GiB" in error["message"]
        body = {"model": "x", "max_tokens": 4, "messages": MESSAGES}
        other = httpx.post(f"{server.url}/v1/messages", json=body, headers={"anthropic-version": "2023-06-01"})
        assert (other.status_code, other.json()["error"]["type"]) == (503, "overloaded_error")
        assert httpx.get(f"{server.url}/readyz").status_code == 503
        assert httpx.get(f"{server.url}/livez").status_code == 200
        metrics = httpx.get(f"{server.url}/metrics").text
        assert "sparkstral_memory_pressure 2.0" in metrics
        assert 'sparkstral_memory_bytes{kind="actual",part="KV pool"}' in metrics
        assert "sparkstral_host_memory_available_bytes 3.221225472e+09" in metrics
        assert running.result().status_code == 200
    server.host.available_bytes = int(4.5 * GiB)  # above the threshold, within its margin
    assert server.post().status_code == 503
    server.host.available_bytes = 50 * GiB
    server.until_ready()
    assert server.post().status_code == 200
    assert server.engine.process_id == process_id


def test_before_the_host_hangs_the_engine_ends_with_the_reason_and_comes_back_when_memory_does(server: Server) -> None:
    process_id = server.engine.process_id
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.post, seed=Fault.SLOW, max_tokens=500)
        server.until(lambda health: health["stats"]["num_running"] == 1)
        server.host.available_bytes = GiB
        server.until(lambda health: health["phase"] == "restarting")
        server.host.available_bytes = 50 * GiB
        error = error_of(running.result())
    assert error["code"] == "engine_dead"
    assert "The host had 1.00 GiB of memory available, and below 2.00 GiB the engine is ended" in error["message"]
    server.until_ready()
    assert server.engine.process_id != process_id
    assert server.post().status_code == 200


PHASES: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = {
    # name: (body, whether it is in that phase by the engine's counts)
    "in the queue": ({}, lambda stats: bool(stats["num_waiting"])),
    "in prefill": (
        {"messages": LONG, "seed": Fault.SLOW, "stream": True},
        lambda stats: stats["num_running"] == 1 and stats["num_generated_tokens"] == 0,
    ),
    "in decode": (
        {"max_tokens": 500, "seed": Fault.SLOW, "stream": True},
        lambda stats: stats["num_generated_tokens"] > 2,
    ),
    "in decode, not streaming": (
        {"max_tokens": 500, "seed": Fault.SLOW},
        lambda stats: stats["num_generated_tokens"] > 2,
    ),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_leaves_frees_what_it_held(server: Server, phase: str) -> None:
    body, is_there = PHASES[phase]
    begin = server.stats()
    others = []
    if phase == "in the queue":
        others = [leave_later(server, max_tokens=500, seed=Fault.SLOW) for _ in range(4)]
        server.until(lambda health: health["stats"]["num_running"] == 4)

    def has_come(health: dict[str, Any]) -> bool:
        stats = health["stats"]
        since = stats["num_generated_tokens"] - (0 if others else begin["num_generated_tokens"])
        return is_there({**stats, "num_generated_tokens": since})

    connection = leave_later(server, **body)
    at_leave = server.until(has_come)["stats"]
    num_left = len(others)
    connection.close()

    def is_free(health: dict[str, Any]) -> bool:
        stats = health["stats"]
        return bool(stats["num_running"] + stats["num_waiting"] == num_left)

    freed = server.until(is_free)["stats"]
    assert freed["step"] - at_leave["step"] < 15, "50 ms each; it had hundreds to go"
    for other in others:
        other.close()
    stats = server.until(lambda health: not health["stats"]["num_running"])["stats"]
    assert stats["num_free_blocks"] == server.engine.info.num_usable_blocks


def leave_later(server: Server, **body: Any) -> socket.socket:
    """Ask, and leave by closing what is returned."""
    data = json.dumps({"messages": MESSAGES, "temperature": 1, **body}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection
