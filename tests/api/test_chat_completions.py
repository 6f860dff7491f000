"""Chat completions as the official SDK sees them, over a real socket and a scripted engine."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import openai
import pytest

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import ServerConfig
from sparkstral.types import Failure, GenerationRequest
from tests.api.conftest import MODEL, Doors
from tests.support.chat_cases import load_cases
from tests.support.fake_engine import FakeEngine, written

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a town",
            "parameters": {
                "type": "object",
                "properties": {"town": {"type": "string"}},
                "required": ["town"],
            },
        },
    }
]
TWO_CALLS = [
    "I look. ",
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Bergen"}',
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Tromsø"}',
    "</s>",
]  # fmt: skip
THOUGHT = ["[THINK]", "A greeting is wanted.", "[/THINK]", "Hello!", "</s>"]

STREAM_CASES = load_cases("tool_streams") + load_cases("reasoning_streams")


def chunks_of(url: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream as they are on the wire; the last line must be [DONE]."""
    body = {"model": MODEL, "messages": HELLO, "stream": True, **body}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def folded(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together from chunks, in the form of a whole completion."""
    message: dict[str, Any] = {}
    finish_reason = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            finish_reason = choice["finish_reason"] or finish_reason
            for key, value in choice["delta"].items():
                if key != "tool_calls":
                    message[key] = message.get(key, "") + value
                    continue
                for piece in value:
                    calls = message.setdefault("tool_calls", [])
                    if piece["index"] == len(calls):
                        calls.append({"function": {"name": "", "arguments": ""}})
                    call = calls[piece["index"]]
                    call |= {k: v for k, v in piece.items() if k in ("id", "type")}
                    for k, v in piece["function"].items():
                        call["function"][k] += v
    return {"message": message, "finish_reason": finish_reason}


def test_a_whole_answer(doors: Doors) -> None:
    engine = doors.engine("Hello, ", "Åse!", "</s>")
    engine.num_cached_tokens = 3
    answer = doors.sdk(engine).chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.choices[0].message.content == "Hello, Åse!"
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(engine.requests[0].prompt_token_ids)
    assert answer.usage.completion_tokens == len(engine.script(engine.requests[0]))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_a_streamed_answer_comes_in_pieces_and_only_the_asked_usage(doors: Doors) -> None:
    sdk = doors.sdk(doors.engine("Hello, ", "Åse!", "</s>"))
    chunks = list(sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello, Åse!"
    assert len(chunks) > 4
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    asked = list(
        sdk.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert asked[-1].choices == []
    assert asked[-1].usage is not None
    assert asked[-1].usage.completion_tokens > 0


@pytest.mark.parametrize("case", STREAM_CASES, ids=lambda case: case["id"])
def test_known_streams(doors: Doors, case: dict[str, Any]) -> None:
    engine = FakeEngine(lambda request: case["output_ids"], chunks=(1, 3))
    url = doors.url(engine)
    begun: list[Any] = []
    if case.get("prefill") == "[THINK]":
        thought = {"type": "thinking", "thinking": [{"type": "text", "text": "So"}], "closed": False}
        begun = [{"role": "assistant", "content": [thought], "prefix": True}]
    body = {"messages": HELLO + begun, "tools": WEATHER, "reasoning_effort": "high"}
    stream = folded(chunks_of(url, **body))
    (whole,) = httpx.post(f"{url}/v1/chat/completions", json=body).json()["choices"]
    expect = case["expect"]
    for answer in (stream, whole):
        message = answer["message"]
        assert (message["content"] or "") == expect["content"]
        for name in case.get("expect_fields", ["reasoning"]):
            assert message.get(name, "") == expect["reasoning"]
        called = [call["function"] for call in message.get("tool_calls", ())]
        assert [{**call, "arguments": json.loads(call["arguments"])} for call in called] == expect["tool_calls"]
        assert answer["finish_reason"] == expect["finish_reason"]


@pytest.mark.parametrize("pieces", [TWO_CALLS, TWO_CALLS[1:], THOUGHT, ["Hi", "</s>"], ["</s>"], ["Cut off"]])
def test_the_folded_stream_is_the_whole_answer(doors: Doors, pieces: list[str]) -> None:
    url = doors.url(doors.engine(*pieces))
    whole = httpx.post(f"{url}/v1/chat/completions", json={"messages": HELLO, "tools": WEATHER}).json()
    stream = folded(chunks_of(url, tools=WEATHER))
    choice = whole["choices"][0]
    choice["message"]["content"] = choice["message"]["content"] or ""
    for call in [*choice["message"].get("tool_calls", ()), *stream["message"].get("tool_calls", ())]:
        assert call.pop("id").isalnum()
    assert {"index": 0, **stream} == choice


def test_tool_calls(doors: Doors) -> None:
    answer = doors.sdk(doors.engine(*TWO_CALLS)).chat.completions.create(
        model=MODEL, messages=HELLO, tools=WEATHER, tool_choice="auto", parallel_tool_calls=True
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look. "
    assert choice.message.tool_calls is not None
    names = [(call.type, call.function.name) for call in choice.message.tool_calls]  # type: ignore[union-attr]
    assert names == [("function", "get_weather")] * 2
    arguments = [json.loads(call.function.arguments) for call in choice.message.tool_calls]  # type: ignore[union-attr]
    assert arguments == [{"town": "Bergen"}, {"town": "Tromsø"}]
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_streamed_tool_calls_have_the_keys_of_the_protocol_and_no_nulls(doors: Doors) -> None:
    chunks = chunks_of(doors.url(doors.engine(*TWO_CALLS)), tools=WEATHER)
    pieces = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", ())]
    firsts = [piece for piece in pieces if "id" in piece]
    assert [piece["index"] for piece in firsts] == [0, 1]
    for piece in firsts:
        assert set(piece) == {"index", "id", "type", "function"}
        assert len(piece["id"]) == 9
    for piece in pieces:
        if piece not in firsts:
            assert set(piece) == {"index", "function"}
            assert set(piece["function"]) == {"arguments"}

    def nulls(value: Any, path: str = "") -> list[str]:
        if isinstance(value, dict):
            return [p for key, item in value.items() for p in nulls(item, f"{path}.{key}")]
        if isinstance(value, list):
            return [p for item in value for p in nulls(item, path)]
        return [path] if value is None else []

    assert {path for chunk in chunks for path in nulls(chunk)} == {".choices.finish_reason"}


def test_reasoning_goes_out_under_both_names_and_is_counted(doors: Doors) -> None:
    url = doors.url(doors.engine(*THOUGHT))
    body = {"messages": HELLO, "reasoning_effort": "high"}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "A greeting is wanted."
    assert message["content"] == "Hello!"
    num_reasoning_tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < num_reasoning_tokens < answer["usage"]["completion_tokens"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(url, reasoning_effort="high")]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "A greeting is wanted."
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)


def test_the_length_limit_is_told(doors: Doors) -> None:
    engine = doors.engine("one two three four five six", "</s>")
    sdk = doors.sdk(engine)
    for limit in (
        {"max_tokens": 3},
        {"max_completion_tokens": 3},
        {"max_tokens": 3, "max_completion_tokens": 3},
    ):
        answer = sdk.chat.completions.create(model=MODEL, messages=HELLO, **limit)  # type: ignore[call-overload]
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize("stop", ["three", ["zzz", "e four", "three"]])
def test_stop_strings_end_the_answer_across_tokens_and_free_the_engine(doors: Doors, stop: Any) -> None:
    engine = doors.engine("one two thr", "ee four five", "</s>")
    url = doors.url(engine)
    stream = folded(chunks_of(url, stop=stop))
    assert stream == {"message": {"role": "assistant", "content": "one two "}, "finish_reason": "stop"}
    assert engine.has_aborted.wait(30)


def test_what_the_client_left_open_is_filled_in_by_the_server(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.max_model_len = 100
    sdk = doors.sdk(engine)
    sdk.chat.completions.create(model=MODEL, messages=HELLO)
    sdk.chat.completions.create(model=MODEL, messages=HELLO, reasoning_effort="high", max_tokens=5000)
    sdk.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, top_p=0.5, seed=7, extra_body={"top_k": 3, "min_p": 0.1}
    )
    plain, high, chosen = (request.sampling for request in engine.requests)
    room = 100 - len(engine.requests[0].prompt_token_ids)
    assert (plain.max_tokens, plain.temperature, plain.top_p, plain.top_k, plain.seed) == (
        room,
        0.1,
        1.0,
        0,
        None,
    )
    assert (high.max_tokens, high.temperature) == (room, 0.7)
    assert (chosen.temperature, chosen.top_p, chosen.top_k, chosen.min_p, chosen.seed) == (0, 0.5, 3, 0.1, 7)
    assert plain.banned_token_ids == (9,)  # no tools offered: a call cannot be written


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.max_model_len = 50
    sdk = doors.sdk(engine)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.chat.completions.create(  # type: ignore[call-overload]
                model=MODEL, messages=[{"role": "user", "content": "tide " * 90}], stream=stream
            )
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "messages"
        assert "--max-model-len" in str(caught.value)
        assert " 50 tokens" in str(caught.value)
    assert engine.requests == []


def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error(doors: Doors) -> None:
    engine = doors.engine("one two three", "</s>")
    engine.fail_after = (2, Failure("engine_dead", "The engine process ended."))
    sdk = doors.sdk(engine)
    stream = sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    seen = [next(stream).choices[0].delta.content for _ in range(3)]
    assert "".join(filter(None, seen)) == "one two"
    with pytest.raises(openai.APIError, match="The engine process ended") as caught:
        next(stream)
    assert caught.value.code == "engine_dead"
    with pytest.raises(openai.InternalServerError, match="The engine process ended") as whole:
        sdk.chat.completions.create(model=MODEL, messages=HELLO)
    assert whole.value.status_code == 503


def test_a_failure_before_the_first_token_has_its_status_streamed_or_not(doors: Doors) -> None:
    engine = doors.engine("one", "</s>")
    sdk = doors.sdk(engine)
    for code, kind in (("grammar", openai.BadRequestError), ("numerics", openai.InternalServerError)):
        engine.fail_after = (0, Failure(code, "Not now."))  # type: ignore[arg-type]
        for stream in (False, True):
            with pytest.raises(kind, match="Not now"):
                sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=stream)  # type: ignore[call-overload]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("hang_after", [0, 2])
def test_a_client_that_leaves_frees_the_engine(doors: Doors, stream: bool, hang_after: int) -> None:
    engine = doors.engine("one two three four", "</s>")
    engine.hang_after = hang_after
    url = doors.url(engine)
    body = {"messages": HELLO, "stream": stream}
    if stream and hang_after:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            events = answer.iter_text()
            assert next(events).startswith("data: ")
            assert not engine.has_aborted.is_set()
    else:
        parts = httpx.URL(url)
        content = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc.decode()}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        with socket.create_connection((parts.host, parts.port)) as connection:
            connection.sendall(head.encode() + content)
            assert engine.is_hanging.wait(30)
            assert not engine.has_aborted.is_set()
    assert engine.has_aborted.wait(30)


def test_eight_streams_at_once_are_not_mixed(doors: Doors, tokenizer: ChatTokenizer) -> None:
    def echo(request: GenerationRequest) -> list[int]:
        """The last word of the prompt, many times."""
        text = "".join(tokenizer.token_bytes(t).decode() for t in request.prompt_token_ids)
        return written(tokenizer, f"{text.split()[-1]} " * 40, "</s>")

    url = doors.url(FakeEngine(echo))
    words = ["otter", "heron", "pike", "crane", "lynx", "moose", "seal", "wren"]

    async def ask(client: openai.AsyncOpenAI, word: str) -> str:
        messages: list[Any] = [{"role": "user", "content": f"Repeat {word}"}]
        stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, word) for word in words))

    assert asyncio.run(ask_all()) == [f"{word} " * 40 for word in words]


def test_log_probabilities_belong_to_the_answers_text(doors: Doors) -> None:
    engine = doors.engine(*THOUGHT[:-1], "[TOOL_CALLS]", "get_weather", "[ARGS]", "{}", "</s>")
    sdk = doors.sdk(engine)
    body: Any = {"model": MODEL, "messages": HELLO, "logprobs": True, "top_logprobs": 2, "tools": WEATHER}
    choice = sdk.chat.completions.create(**body).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert b"".join(bytes(item.bytes or ()) for item in content) == b"Hello!"
    assert [len(item.top_logprobs) for item in content] == [2] * len(content)
    assert content[0].logprob == content[0].top_logprobs[0].logprob == -0.25
    chunks = list(sdk.chat.completions.create(stream=True, **body))
    streamed = [item for chunk in chunks if (told := chunk.choices[0].logprobs) for item in told.content or ()]
    assert streamed == content
    plain = sdk.chat.completions.create(model=MODEL, messages=HELLO).choices[0]
    assert plain.logprobs is None


@pytest.mark.parametrize("pieces", [("one two thr", "ee four", "</s>"), ("one two th", "</s>"), ("né日", "</s>")])
def test_no_log_probability_is_lost_or_told_too_early_by_stop_strings(doors: Doors, pieces: tuple[str, ...]) -> None:
    url = doors.url(doors.engine(*pieces))
    text, told = "", b""
    for chunk in chunks_of(url, logprobs=True, stop=["three", "hx"]):
        choice = chunk["choices"][0]
        text += choice["delta"].get("content", "")
        told += b"".join(bytes(item["bytes"]) for item in choice.get("logprobs", {}).get("content", ()))
        assert told.startswith(text.encode())
    assert text == ("one two " if "four" in "".join(pieces) else "".join(pieces[:-1]))
    assert len(told) <= len("".join(pieces[:-1]).encode())


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers(doors: Doors, tokenizer: ChatTokenizer, stream: bool) -> None:
    def by_seed(request: GenerationRequest) -> list[int]:
        return written(tokenizer, f"Number {request.sampling.seed} " * (request.sampling.seed or 0), "</s>")

    engine = FakeEngine(by_seed)
    body: Any = {"model": MODEL, "messages": HELLO, "n": 3, "seed": 4}
    sdk = doors.sdk(engine)
    if stream:
        with sdk.chat.completions.stream(**body, stream_options={"include_usage": True}) as events:
            answer: Any = events.get_final_completion()
    else:
        answer = sdk.chat.completions.create(**body)
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [f"Number {seed} " * seed for seed in (4, 5, 6)]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.prompt_tokens == len(engine.requests[0].prompt_token_ids)
    assert answer.usage.completion_tokens == sum(len(by_seed(request)) for request in engine.requests)
    assert len({request.request_id for request in engine.requests}) == 3


def test_several_answers_need_as_many_places(doors: Doors) -> None:
    url = doors.url(doors.engine("Hi", "</s>"), ServerConfig(max_in_flight=2))
    for stream in (False, True):
        body = {"messages": HELLO, "n": 3, "stream": stream}
        assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 429
    assert httpx.post(f"{url}/v1/chat/completions", json={"messages": HELLO, "n": 2}).status_code == 200


def test_sampling_fields_reach_the_engine(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    doors.sdk(engine).chat.completions.create(
        model=MODEL, messages=HELLO, presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={"1033": -100},
        extra_body={"repetition_penalty": 1.2, "min_tokens": 3, "ignore_eos": True},
    )  # fmt: skip
    sampling = engine.requests[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.2)
    assert (sampling.logit_bias, sampling.min_tokens) == (((1033, -100.0),), 3)
    assert 2 in sampling.banned_token_ids
