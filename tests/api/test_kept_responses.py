"""What GET tells of a response, before, at and after its end."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from sparkstral.types import Failure
from tests.api.conftest import MODEL, Doors
from tests.api.test_responses import PATH, WEATHER, ask


def test_a_response_is_kept_from_its_first_event_on(doors: Doors) -> None:
    engine = doors.engine("one two three", "</s>")
    engine.hang_after = 2
    client = doors.sdk(engine)
    with client.responses.create(model=MODEL, input="x", stream=True) as events:
        first = next(iter(events))
        assert client.responses.retrieve(first.response.id).status == "in_progress"
    assert engine.has_aborted.wait(20)
    ends = (client.responses.retrieve(first.response.id).status for _ in range(1000))
    assert next(status for status in ends if status != "in_progress") == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_failed_is_kept_as_that(doors: Doors, stream: bool) -> None:
    engine = doors.engine("one two three", "</s>")
    engine.fail_after = (2, Failure("engine_dead", "The engine process ended."))
    client = doors.sdk(engine)
    if stream:
        with client.responses.create(model=MODEL, input="x", stream=True) as events:
            *_, last = events
        kept = client.responses.retrieve(last.response.id)
    else:
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.create(model=MODEL, input="x")
        kept = client.responses.retrieve(caught.value.response.headers["x-request-id"])
    assert (kept.status, kept.error.message if kept.error else "") == ("failed", "The engine process ended.")


def test_a_request_that_was_refused_leaves_nothing(doors: Doors) -> None:
    engine = doors.engine("one", "</s>")
    engine.fail_after = (0, Failure("numerics", "Not a number."))
    client = doors.sdk(engine)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, False, input=[])
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(caught.value.response.headers["x-request-id"])


def test_a_kept_response_is_not_streamed_again(doors: Doors) -> None:
    client = doors.sdk(doors.engine("Hi", "</s>"))
    kept = ask(client, False)
    with pytest.raises(openai.BadRequestError, match="not streamed again") as caught:
        client.responses.retrieve(kept.id, stream=True)
    assert caught.value.param == "stream"


def test_tokens_are_counted_without_an_answer(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    client = doors.sdk(engine)
    body: Any = {"input": "Rain?", "instructions": "Be brief.", "tools": [WEATHER]}
    counted = client.responses.input_tokens.count(model=MODEL, **body)
    assert engine.requests == []
    assert counted.input_tokens == ask(client, False, **body).usage.input_tokens


def test_paths_that_are_not_served_are_not_taken_for_responses(doors: Doors) -> None:
    async def send() -> list[Any]:
        async with doors.asgi(doors.engine("Hi", "</s>")) as client:
            return [await client.post(f"{PATH}/{name}", json={}) for name in ("compact", "resp_1/cancel")]

    assert [answer.status_code for answer in asyncio.run(send())] == [404, 404]
