"""Streams that have nothing to say, and clients that do not listen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from sparkstral.api.sse import KEEP_ALIVE, EventStream, with_pauses
from sparkstral.config import ServerConfig
from tests.api.conftest import MODEL, Doors

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "stream": True}


@pytest.mark.parametrize("hang_after", [0, 1])
def test_a_stream_that_waits_for_a_token_says_that_it_lives(doors: Doors, hang_after: int) -> None:
    engine = doors.engine("one two three", "</s>")
    engine.hang_after = hang_after
    url = doors.url(engine, ServerConfig(keep_alive_s=0.05))
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        num_comments = 0
        while num_comments < 2:
            num_comments += next(lines).startswith(":")
    assert engine.has_aborted.wait(30)


def test_official_clients_do_not_see_the_comments(doors: Doors) -> None:
    engine = doors.engine("one two three", "</s>")
    sdk = doors.sdk(engine, ServerConfig(keep_alive_s=0.0))  # each time that nothing is there yet
    chunks = sdk.chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"


async def numbers(closed: list[bool], delay_s: float = 0.0) -> AsyncGenerator[int, None]:
    try:
        for number in range(1000):
            await asyncio.sleep(delay_s)
            yield number
    finally:
        closed.append(True)


def test_pauses_lose_nothing_and_close_what_they_read() -> None:
    async def main() -> None:
        closed: list[bool] = []
        async with asyncio.timeout(30):
            seen = []
            events = with_pauses(numbers(closed, 0.002), 0.0005)
            async for event in events:
                seen.append(event)
                if event == 5:
                    break
            await events.aclose()
        assert [event for event in seen if event is not None] == [0, 1, 2, 3, 4, 5]
        assert None in seen
        assert closed == [True]
        waiting = with_pauses(numbers(closed, 60.0), 0.001)
        assert await anext(waiting) is None
        await waiting.aclose()  # while its source waits
        assert closed == [True, True]

    asyncio.run(main())


def test_a_client_that_reads_nothing_is_given_up() -> None:
    async def main() -> None:
        closed: list[bool] = []
        num_sent = 0

        async def send(message: Any) -> None:
            nonlocal num_sent
            num_sent += 1
            if num_sent > 5:
                await asyncio.Event().wait()  # its buffers are full

        async def receive() -> Any:
            await asyncio.Event().wait()

        source = with_pauses(numbers(closed), 10.0)
        stream = EventStream(None, source, lambda number: b"%d" % number, {}, reader_timeout_s=0.05)
        begin = time.monotonic()
        await stream({"type": "http"}, receive, send)
        assert time.monotonic() - begin < 30
        assert num_sent == 6
        assert closed == [True]

    asyncio.run(main())
    assert KEEP_ALIVE.startswith(b":")
