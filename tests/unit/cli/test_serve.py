"""How the server ends: in words for every answer, and soon."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import uvicorn

from sparkstral.api.app import create_app
from sparkstral.cli.serve import DrainingServer, warn_of_open_doors
from sparkstral.config import ServerConfig
from sparkstral.types import EnginePhase, EngineStatus, Failure, GenerationRequest, TokenOutput
from tests.support.fake_engine import FakeEngine, written
from tests.support.tekken import v15_tokenizer, write_tekken
from tests.unit.cli.conftest import Run

BODY = {"messages": [{"role": "user", "content": "Say hello."}]}


class EndlessEngine(FakeEngine):
    """Says one token and no more, until it is stopped; as the real one it then fails what still runs."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        self.requests.append(request)
        yield TokenOutput(request.request_id, (self.script(request)[0],))
        while self.num_stopped == 0:
            await asyncio.sleep(0.01)
        yield TokenOutput(request.request_id, (), failure=Failure("engine_dead", self.now.detail))

    async def stop(self) -> None:
        self.now = EngineStatus(EnginePhase.DEAD, detail="The engine was stopped.")
        await super().stop()


@pytest.mark.parametrize(("drain_s", "num_signals"), [(0.3, 1), (60.0, 2)])
def test_answers_that_outlast_the_drain_or_a_second_signal_end_with_the_reason(drain_s: float, num_signals: int):
    async def main() -> None:
        tokenizer = v15_tokenizer()
        engine = EndlessEngine(lambda request: written(tokenizer, "Hello"))
        config = uvicorn.Config(create_app(engine, tokenizer, ServerConfig()), log_level="error", lifespan="on")
        server = DrainingServer(config, engine, drain_s)
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        async with httpx.AsyncClient(timeout=20) as client:
            whole = asyncio.create_task(client.post(url, json=BODY))
            streamed = asyncio.create_task(client.post(url, json={**BODY, "stream": True}))
            while len(engine.requests) < 2:
                await asyncio.sleep(0.01)
            begin = time.monotonic()
            for _ in range(num_signals):
                server.handle_exit(signal.SIGINT, None)
            answer, stream = await whole, await streamed
            await serving
        assert time.monotonic() - begin < 30.0  # half of the drain that a second signal cuts short
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "The engine was stopped."
        assert '"error":{"message":"The engine was stopped."' in stream.text.splitlines()[-2]

    with ThreadPoolExecutor(1) as other_thread:  # in the main one it would take the test's own signals
        other_thread.submit(asyncio.run, main()).result()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", "a\0b", "ü" * 80])
def test_a_host_that_is_none_is_named(run: Run, host: str, tmp_path: Path):
    write_tekken(tmp_path)
    ended = run("serve", str(tmp_path), "--host", host)
    assert ended.code == 2
    assert "--host" in ended.err


@pytest.mark.parametrize(
    ("config", "warning"),
    [
        (ServerConfig(), None),
        (ServerConfig(host="0.0.0.0"), "0.0.0.0:8002"),
        (ServerConfig(host="0.0.0.0", api_keys=("k",)), None),
        (ServerConfig(cors_origins=("*",)), "WEB PAGE"),
        (ServerConfig(cors_origins=("*",), api_keys=("k",)), None),
    ],
    ids=repr,
)
def test_doors_that_stand_open_are_told_loudly(
    config: ServerConfig, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_open_doors(config)
    assert [warning in record.message for record in caplog.records if warning] == ([True] if warning else [])
    assert bool(caplog.records) == (warning is not None)
