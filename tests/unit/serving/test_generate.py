"""A request through serving: exactly one last event whatever happens, and an abort when its reader leaves."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import ServerConfig
from sparkstral.errors import NotReadyError, OverloadedError, RequestError
from sparkstral.logs import JsonFormatter
from sparkstral.serving.admission import Admission
from sparkstral.serving.answers import MAX_UNREAD_EVENTS
from sparkstral.serving.generate import Generator, variants
from sparkstral.types import (
    ChatMessage,
    ChatRequest,
    EnginePhase,
    EngineStatus,
    Failed,
    Failure,
    Finished,
    FinishReason,
    GenerationRequest,
    OutputEvent,
    SamplingChoice,
    TextDelta,
    TextPart,
    TokenOutput,
    Urgency,
)
from tests.support.fake_engine import FakeEngine, written
from tests.support.tekken import v15_tokenizer

Stream = AsyncGenerator[TokenOutput, None]


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    return v15_tokenizer()


def ask(stop: tuple[str, ...] = ()) -> ChatRequest:
    return ChatRequest((ChatMessage("user", (TextPart("Count."),)),), sampling=SamplingChoice(stop=stop))


def events_of(engine: FakeEngine, tokenizer: ChatTokenizer, request: ChatRequest) -> list[OutputEvent]:
    async def collect() -> list[OutputEvent]:
        generator = Generator(engine, tokenizer, ServerConfig(), Admission(256), Heard())
        prepared = await generator.prepare(request, "one")
        return [event async for _, event in generator.run_all([prepared])]

    return asyncio.run(collect())


class Heard:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.num_tokens = 0
        self.outcomes: list[str] = []
        self.repairs: list[str] = []

    def first_token(self, ttft_s: float) -> None:
        self.times.append(ttft_s)
        self.num_tokens += 1

    def more_tokens(self, num_tokens: int, itl_s: float) -> None:
        self.times.append(itl_s)
        self.num_tokens += num_tokens

    def repaired(self, repairs: Sequence[str]) -> None:
        self.repairs += repairs

    def ended(self, outcome: str, e2e_s: float) -> None:
        self.times.append(e2e_s)
        self.outcomes.append(outcome)


class BadEngine(FakeEngine):
    """Plays a stream that the real engine should never make."""

    def __init__(self, play: Callable[[GenerationRequest], Stream]) -> None:
        super().__init__(lambda request: [2])
        self._play = play

    def generate(self, request: GenerationRequest) -> Stream:
        return self._play(request)


async def ends_without_a_word(request: GenerationRequest) -> Stream:
    yield TokenOutput(request.request_id, (1065,))


async def is_aborted_by_another(request: GenerationRequest) -> Stream:
    yield TokenOutput(request.request_id, (1065,), FinishReason.ABORTED)


async def breaks(request: GenerationRequest) -> Stream:
    yield TokenOutput(request.request_id, (1065,))
    raise ZeroDivisionError


async def says_an_unknown_token(request: GenerationRequest) -> Stream:
    yield TokenOutput(request.request_id, (1065, 9_999_999))


@pytest.mark.parametrize(
    ("play", "code"),
    [
        (ends_without_a_word, "engine_dead"),
        (is_aborted_by_another, "engine_dead"),
        (breaks, "internal"),
        (says_an_unknown_token, "internal"),
    ],
)
def test_whatever_the_engine_does_there_is_one_last_event(
    tokenizer: ChatTokenizer, play: Callable[[GenerationRequest], Stream], code: str
) -> None:
    *others, last = events_of(BadEngine(play), tokenizer, ask())
    assert isinstance(last, Failed)
    assert last.failure.code == code
    assert all(isinstance(event, TextDelta) for event in others)


def test_a_failure_is_handed_on_after_the_words_before_it(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(lambda request: written(tokenizer, "one two three", "</s>"))
    engine.fail_after = (2, Failure("numerics", "Not a number."))
    *others, last = events_of(engine, tokenizer, ask())
    assert last == Failed(Failure("numerics", "Not a number."))
    assert "".join(event.text for event in others if isinstance(event, TextDelta)) == "one two"


def test_a_stop_string_ends_the_request_in_the_engine(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(lambda request: written(tokenizer, "one two three four", "</s>"))
    *others, last = events_of(engine, tokenizer, ask(stop=("wo th",)))
    assert "".join(event.text for event in others if isinstance(event, TextDelta)) == "one t"
    assert isinstance(last, Finished)
    assert last.reason == "stop"
    assert last.usage.num_completion_tokens == 3
    assert engine.has_aborted.is_set()


def test_leaving_early_aborts_and_gives_the_slot_back(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(lambda request: written(tokenizer, "one two three", "</s>"))

    async def leave() -> None:
        generator = Generator(engine, tokenizer, ServerConfig(), Admission(1), Heard())
        prepared = await generator.prepare(ask(), "one")
        async with aclosing(generator.run_all([prepared])) as events:
            await anext(events)
            with pytest.raises(OverloadedError), generator.admission.slot():
                pass
            with pytest.raises(OverloadedError):
                await anext(generator.run_all([prepared]))
        assert engine.has_aborted.is_set()
        assert [event async for _, event in generator.run_all([prepared])]

    asyncio.run(leave())


def test_a_cancelled_reader_aborts(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(lambda request: written(tokenizer, "one two three", "</s>"))
    engine.hang_after = 1

    async def cancel() -> None:
        generator = Generator(engine, tokenizer, ServerConfig(), Admission(256), Heard())
        events = generator.run_all([await generator.prepare(ask(), "one")])
        await anext(events)
        reading: asyncio.Future[Any] = asyncio.ensure_future(anext(events))
        while not engine.is_hanging.is_set():
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert engine.has_aborted.is_set()

    asyncio.run(cancel())


def test_what_cannot_begin_raises_and_has_no_events(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(lambda request: [2])
    with pytest.raises(RequestError):
        events_of(engine, tokenizer, ChatRequest(messages=()))
    engine.now = EngineStatus(EnginePhase.DEAD, detail="Killed.")
    with pytest.raises(NotReadyError, match="Killed"):
        events_of(engine, tokenizer, ask())

    async def dies_between() -> None:
        engine.now = EngineStatus(EnginePhase.READY)
        generator = Generator(engine, tokenizer, ServerConfig(), Admission(256), Heard())
        prepared = await generator.prepare(ask(), "one")
        engine.now = EngineStatus(EnginePhase.DEAD)
        with pytest.raises(NotReadyError):
            await anext(generator.run_all([prepared]))

    asyncio.run(dies_between())


def test_a_clients_own_deadline_ends_its_answer_in_words_and_aborts_it(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(lambda request: written(tokenizer, "one"), hang_after=0)

    async def main() -> list[OutputEvent]:
        generator = Generator(engine, tokenizer, ServerConfig(), Admission(1), Heard())
        prepared = await generator.prepare(ask(), "one", Urgency(-3, timeout_s=0.01))
        assert prepared.generation.priority == -3
        return [event async for _, event in generator.run_all([prepared])]

    (event,) = asyncio.run(main())
    assert isinstance(event, Failed)
    assert event.failure.code == "timeout"
    assert "0.01 s, the time that the client gave it" in event.failure.message
    assert engine.has_aborted.is_set()


def test_the_time_of_a_request_begins_when_it_arrives(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(lambda request: written(tokenizer, "one", "</s>"), hang_after=0)

    async def main() -> list[OutputEvent]:
        generator = Generator(engine, tokenizer, ServerConfig(), Admission(1), Heard())
        arrived_s = time.monotonic() - 3000  # so long was its body under way
        prepared = await generator.prepare(ask(), "one", Urgency(timeout_s=3000), arrived_s)
        return [event async for _, event in generator.run_all([prepared])]

    (event,) = asyncio.run(main())
    assert isinstance(event, Failed)
    assert event.failure.code == "timeout"


@pytest.mark.parametrize("fail_after", [0, 2])
def test_the_first_answer_that_fails_is_the_end_of_all(tokenizer: ChatTokenizer, fail_after: int) -> None:
    engine = FakeEngine(lambda request: written(tokenizer, "one two three", "</s>"))
    engine.fail_after = (fail_after, Failure("numerics", "Not a number."))
    heard = Heard()

    async def main() -> list[OutputEvent]:
        generator = Generator(engine, tokenizer, ServerConfig(), Admission(3), heard)
        prepared = await generator.prepare(ask(), "one")
        return [event async for _, event in generator.run_all(variants(prepared, 3))]

    *others, last = asyncio.run(main())
    assert isinstance(last, Failed)
    assert all(isinstance(event, TextDelta) for event in others)
    assert len(heard.outcomes) == 3


def test_answers_that_nobody_reads_wait(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(lambda request: written(tokenizer, "tide " * 1000, "</s>"))
    heard = Heard()

    async def main() -> None:
        generator = Generator(engine, tokenizer, ServerConfig(), Admission(3), heard)
        prepared = await generator.prepare(ask(), "one")
        async with aclosing(generator.run_all(variants(prepared, 3))) as events:
            await anext(events)
            for _ in range(2000):
                await asyncio.sleep(0)

    asyncio.run(main())
    assert heard.num_tokens < 2 * MAX_UNREAD_EVENTS


@pytest.mark.parametrize("leave", [False, True])
def test_every_request_is_observed_and_logged_once_at_its_end(
    tokenizer: ChatTokenizer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, leave: bool
) -> None:
    logger = logging.Logger("of this test alone")
    logger.addHandler(caplog.handler)
    monkeypatch.setattr("sparkstral.serving.trace.logger", logger)
    engine = FakeEngine(lambda request: written(tokenizer, "one two three four", "</s>"), num_cached_tokens=2)
    heard = Heard()

    async def main() -> None:
        generator = Generator(engine, tokenizer, ServerConfig(), Admission(1), heard)
        async with aclosing(generator.run_all([await generator.prepare(ask(), "one")])) as events:
            async for _ in events:
                if leave:
                    return

    asyncio.run(main())
    assert heard.outcomes == ["aborted" if leave else "stop"]
    assert all(0 <= seconds < 60 for seconds in heard.times)
    (record,) = caplog.records
    line = json.loads(JsonFormatter().format(record))
    assert (line["request_id"], line["outcome"], line["num_cached_tokens"]) == ("one", heard.outcomes[0], 2)
    assert line["num_output_tokens"] == heard.num_tokens > 0
