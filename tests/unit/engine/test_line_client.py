"""The client's side: one stream for each request, early leavers, slow readers, and the engine's end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

import pytest

from sparkstral.engine.line_client import LineClient
from sparkstral.engine.messages import Abort, FromEngine, Outputs, Ready, StatusChanged, Submit, ToEngine
from sparkstral.errors import NotReadyError, RequestError
from sparkstral.types import (
    EngineInfo,
    EnginePhase,
    EngineStats,
    EngineStatus,
    Failure,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenOutput,
)

INFO = EngineInfo(100, 4, 9, "cpu", "float32")
STATS = EngineStats(step=3, num_running=1, num_waiting=0, num_free_blocks=5, num_cached_blocks=2)


class Client(LineClient):
    """The engine's part is played by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[ToEngine] = []

    def _send(self, message: ToEngine) -> None:
        self.sent.append(message)

    def hear(self, *messages: FromEngine) -> None:
        for message in messages:
            self._receive(message)

    def hear_tokens(self, request_id: str, *token_ids: int, finish: FinishReason | None = None) -> None:
        self.hear(Outputs((TokenOutput(request_id, token_ids, finish, num_prompt_tokens=2),), STATS))


def ready_client() -> Client:
    client = Client()
    client.hear(Ready(INFO))
    return client


def request(request_id: str = "r") -> GenerationRequest:
    return GenerationRequest(request_id, (1, 2), SamplingParams(max_tokens=5, temperature=0, stop_token_ids=()))


async def begin(client: Client, request_id: str = "r") -> asyncio.Task[list[TokenOutput]]:
    """A reader that takes all outputs, already waiting for the first."""

    async def read() -> list[TokenOutput]:
        return [output async for output in client.generate(request(request_id))]

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    return task


def run(coroutine) -> None:
    asyncio.run(coroutine)


def test_each_request_gets_its_own_outputs():
    async def main() -> None:
        client = ready_client()
        a, b = await begin(client, "a"), await begin(client, "b")
        assert client.sent == [Submit(request("a")), Submit(request("b"))]
        client.hear_tokens("a", 5)
        client.hear_tokens("b", 6, finish=FinishReason.STOP)
        client.hear_tokens("a", 7, finish=FinishReason.LENGTH)
        assert [t for o in await a for t in o.new_token_ids] == [5, 7]
        assert [t for o in await b for t in o.new_token_ids] == [6]
        assert client.stats() == STATS
        assert len(client.sent) == 2  # nothing to abort

    run(main())


def test_a_slow_reader_gets_all_tokens_in_one_output():
    async def main() -> None:
        client = ready_client()
        async with aclosing(client.generate(request())) as outputs:
            first = asyncio.ensure_future(anext(outputs))
            await asyncio.sleep(0)
            for token in (5, 6, 7):
                client.hear_tokens("r", token)
            assert await first == TokenOutput("r", (5, 6, 7), num_prompt_tokens=2)
            client.hear_tokens("r", 8)
            client.hear_tokens("r", 9, finish=FinishReason.LENGTH)
            last = await anext(outputs)
            assert last == TokenOutput("r", (8, 9), FinishReason.LENGTH, num_prompt_tokens=2)
            with pytest.raises(StopAsyncIteration):
                await anext(outputs)

    run(main())


def test_who_leaves_early_aborts():
    async def main() -> None:
        client = ready_client()
        async with aclosing(client.generate(request())) as outputs:
            client_hears = asyncio.ensure_future(anext(outputs))
            await asyncio.sleep(0)
            client.hear_tokens("r", 5)
            await client_hears
        assert client.sent[1:] == [Abort("r")]
        client.hear_tokens("r", 6)  # on its way when the reader left

        task = await begin(client, "cancelled")
        task.cancel()
        await asyncio.wait([task])
        assert client.sent[-1] == Abort("cancelled")

    run(main())


def test_who_leaves_after_the_end_aborts_nothing():
    async def main() -> None:
        client = ready_client()
        async with aclosing(client.generate(request())) as outputs:
            first = asyncio.ensure_future(anext(outputs))
            await asyncio.sleep(0)
            client.hear_tokens("r", 5)
            await first
            client.hear_tokens("r", 6, finish=FinishReason.STOP)
        assert client.sent == [Submit(request())]

    run(main())


def test_a_dead_engine_ends_every_request_with_its_first_reason():
    async def main() -> None:
        client = ready_client()
        readers = [await begin(client, name) for name in ("a", "b")]
        client.hear_tokens("a", 5)
        client.hear(StatusChanged(EngineStatus(EnginePhase.DEAD, detail="The GPU is gone.")))
        client.hear(StatusChanged(EngineStatus(EnginePhase.DEAD, detail="exit code 1")))
        outputs = [await reader for reader in readers]
        assert outputs[0][0].new_token_ids == (5,)
        for output in outputs:
            assert output[-1].failure == Failure("engine_dead", "The GPU is gone.")
            assert sum(o.is_last for o in output) == 1
        assert client.status().detail == "The GPU is gone."
        with pytest.raises(NotReadyError, match=r"dead: The GPU is gone\."):
            await anext(client.generate(request()))
        with pytest.raises(NotReadyError):
            await client.wait_until_ready()

    run(main())


def test_a_death_is_logged_unless_someone_waits_for_the_start_or_stops_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    logger = logging.Logger("of this test alone")
    logger.addHandler(caplog.handler)
    monkeypatch.setattr("sparkstral.engine.line_client.logger", logger)

    def die(client: Client) -> int:
        caplog.clear()
        client.hear(StatusChanged(EngineStatus(EnginePhase.DEAD, detail="The GPU is gone.")))
        return caplog.text.count("The GPU is gone.")

    async def main() -> None:
        assert die(Client()) == 0
        assert die(ready_client()) == 1
        stopping = ready_client()
        stopping.hear(StatusChanged(EngineStatus(EnginePhase.DRAINING)))
        assert die(stopping) == 0

    run(main())


def test_an_end_that_has_arrived_stays_though_the_engine_dies():
    async def main() -> None:
        client = ready_client()
        reader = await begin(client)
        client.hear_tokens("r", 5, finish=FinishReason.STOP)
        client.hear(StatusChanged(EngineStatus(EnginePhase.DEAD, detail="gone")))
        assert await reader == [TokenOutput("r", (5,), FinishReason.STOP, num_prompt_tokens=2)]

    run(main())


def test_before_it_is_ready_there_is_a_phase_and_no_facts():
    async def main() -> None:
        client = Client()
        client.hear(StatusChanged(EngineStatus(EnginePhase.LOADING, 0.4, "4 of 10 GiB")))
        assert client.status().progress == 0.4
        with pytest.raises(NotReadyError, match="loading"):
            _ = client.info
        with pytest.raises(NotReadyError, match=r"loading \(40%\): 4 of 10 GiB"):
            await anext(client.generate(request()))
        waiting = asyncio.ensure_future(client.wait_until_ready())
        await asyncio.sleep(0)
        assert not waiting.done()
        client.hear(Ready(INFO))
        assert await waiting == INFO
        assert client.status().phase is EnginePhase.READY

    run(main())


def test_an_id_that_is_in_use_is_refused_and_its_owner_goes_on():
    async def main() -> None:
        client = ready_client()
        reader = await begin(client)
        with pytest.raises(RequestError, match="'r'"):
            await anext(client.generate(request()))
        assert len(client.sent) == 1
        client.hear_tokens("r", 5, finish=FinishReason.STOP)
        assert (await reader)[-1].new_token_ids == (5,)

    run(main())
