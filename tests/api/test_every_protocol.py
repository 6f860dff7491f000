"""What holds for all protocols alike: ids on every answer, the client's own names in errors, repairs, any split."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from sparkstral.api.app import create_app
from sparkstral.chat.history import STEPS
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import ServerConfig
from sparkstral.types import Failure
from tests.api.conftest import Doors
from tests.support.fake_engine import FakeEngine, written

CHAT, RESPONSES, MESSAGES, TEXT = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
RIGHT: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    TEXT: {"prompt": "Once upon"},
    RESPONSES: {"input": HELLO},
    MESSAGES: {"messages": HELLO, "max_tokens": 900},
    f"{MESSAGES}/count_tokens": {"messages": HELLO},
    "/tokenize": {"prompt": "Once upon"},
    "/detokenize": {"tokens": [1065]},
    "/render": {"messages": HELLO},
}
ANSWERING = (CHAT, TEXT, RESPONSES, MESSAGES)
ALL_KINDS = [
    "[THINK]", "Both towns: Åse's.", "[/THINK]", "I lööök. ",
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Bergen", "days": [1, 2.5, {"a": null}]}',
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Tromsø"}',
    "</s>",
]  # fmt: skip


def posted(doors: Doors, path: str, *bodies: Any, max_model_len: int = 4096, **config: Any) -> list[httpx.Response]:
    engine = doors.engine("Hi", "</s>")
    engine.max_model_len = max_model_len

    async def send() -> list[httpx.Response]:
        async with doors.asgi(engine, ServerConfig(**config)) as client:
            return [await client.post(path, json=body) for body in bodies]

    return asyncio.run(send())


@pytest.mark.parametrize("path", RIGHT)
def test_every_answer_has_an_id_and_tells_what_changed_nothing(doors: Doors, path: str) -> None:
    right, wrong, unknown_model = posted(
        doors, path, RIGHT[path] | {"top_a": 1}, [], RIGHT[path] | {"model": "another"}
    )
    assert (right.status_code, wrong.status_code, unknown_model.status_code) == (200, 400, 404)
    assert right.headers["x-sparkstral-ignored"] == "top_a"
    ids = [answer.headers["x-request-id"] for answer in (right, wrong, unknown_model)]
    assert len(set(ids)) == 3
    assert ids == [answer.headers["request-id"] for answer in (right, wrong, unknown_model)]


def test_what_meets_no_route_and_what_meets_a_defect_has_an_id_too(
    doors: Doors, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = doors.url(doors.engine("Hi", "</s>"), ServerConfig(api_keys=("key",)))
    key = {"x-api-key": "key"}
    asked = [("/nothing", key), (CHAT, key), ("/v1/models", {})]
    answers = [httpx.get(url + path, headers=headers) for path, headers in asked]

    def breaks(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("sparkstral.api.exchange.parse", breaks)
    answers.append(httpx.post(url + CHAT, json=RIGHT[CHAT], headers=key))
    assert [answer.status_code for answer in answers] == [404, 405, 401, 500]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 4
    assert any(getattr(r, "request_id", None) == answers[-1].headers["x-request-id"] for r in caplog.records)


def deep(num_references: int) -> dict[str, Any]:
    """A schema of small definitions, each of which refers to the next."""
    parts = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(num_references)
    }
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**parts, f"d{num_references}": {}}}


def asking_for(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any], str]]:
    """Bodies that want an answer or arguments to be held to `schema`: path, change, the schema's place."""
    chat_tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    tool = {"type": "function", "name": "f", "parameters": schema, "strict": True}
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    own = {"type": "json_schema", "name": "x", "schema": schema}
    return [
        (CHAT, {"response_format": shape}, "response_format"),
        (CHAT, {"tools": [chat_tool]}, "tools[0].function.parameters"),
        (RESPONSES, {"text": {"format": own}}, "text.format"),
        (RESPONSES, {"tools": [{"type": "web_search"}, tool]}, "tools[1].parameters"),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": schema}}}, "output_config.format"),
        (MESSAGES, {"tools": [{"name": "f", "input_schema": schema, "strict": True}]}, "tools[0].input_schema"),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_schema_that_would_overrun_the_stack_is_refused_by_name(doors: Doors, number: int) -> None:
    (path, change, place), (_, fits, _) = asking_for(deep(1500))[number], asking_for(deep(60))[number]
    wrong, right = posted(doors, path, RIGHT[path] | change, RIGHT[path] | fits, max_model_len=100_000)
    assert (wrong.status_code, right.status_code) == (400, 200)
    message = wrong.json()["error"]["message"]
    assert place in message
    assert "256 is the most" in message
    if path != MESSAGES:
        assert wrong.json()["error"]["param"] == place


def calls(name: str, call_id: str = "call00001") -> list[Any]:
    return [{"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}]


def said(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


USE = {"type": "tool_use", "id": "call00001", "name": "f", "input": {}}
ITEM = {"type": "function_call", "call_id": "call00001", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("path", "change", "place"),
    [
        (
            CHAT,
            {"messages": [*HELLO, {"role": "assistant", "tool_calls": calls("")}]},
            "messages[1].tool_calls[0].function.name",
        ),
        (
            CHAT,
            {"messages": [*HELLO, {"role": "assistant", "function_call": {"name": ""}}]},
            "messages[1].function_call.name",
        ),
        (
            MESSAGES,
            {"system": "x", "messages": [*HELLO, said({**USE, "name": ""})]},
            "messages[1].content[0].name",
        ),
        (
            RESPONSES,
            {"instructions": "x", "input": [*HELLO, {**ITEM, "name": ""}]},
            "input[1].name",
        ),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": "tide " * 5000}, "input"),
        (RESPONSES, {"tools": [{"type": "web_search"}, *[{"type": "function", "name": "f"}] * 2]}, "tools[2].name"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools[1].function.name"),
        (CHAT, {"min_tokens": 10**30}, "min_tokens"),
        (TEXT, {"min_tokens": 10**30, "max_tokens": 10**31}, "min_tokens"),
        (TEXT, {"prompt": "", "add_special_tokens": False}, "prompt"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_a_wrong_place_is_the_clients_own(doors: Doors, path: str, change: dict[str, Any], place: str) -> None:
    (answer,) = posted(doors, path, RIGHT[path] | change)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert place in error["message"]
    assert path == MESSAGES or error["param"] == place


ASSISTANT = {"role": "assistant", "content": "Hi."}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "rain"}
TEXT_PART = {"type": "text", "text": "x"}
USER, SYSTEM = HELLO[0], {"role": "system", "content": "Be brief."}
CALLED = {"role": "assistant", "tool_calls": calls("f")}
TOLD = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call00001", "content": "rain"}]}
USED = said(USE)
THOUGHT = {"type": "thinking", "thinking": "x", "closed": False}
BILLING = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2;"}]
OUTPUT = {"type": "function_call_output", "call_id": "call00001", "output": "rain"}
BROKEN = [{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{town"}}]
REPAIRED: list[tuple[str, str, dict[str, Any]]] = [
    ("drop_empty_turns", CHAT, {"messages": [USER, {"role": "assistant", "content": ""}]}),
    ("system_after_answer_to_user", CHAT, {"messages": [USER, ASSISTANT, SYSTEM]}),
    ("merge_turns", CHAT, {"messages": [USER, USER]}),
    ("close_thoughts", CHAT, {"messages": [USER, said(THOUGHT, TEXT_PART), USER]}),
    ("plain_call_names", CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": calls("a.b")}, RESULT]}),
    ("native_tool_ids", CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": calls("f", "x")}]}),
    ("orphan_results_to_user", CHAT, {"messages": [USER, ASSISTANT, RESULT]}),
    ("join_repeated_results", CHAT, {"messages": [USER, CALLED, RESULT, RESULT]}),
    ("results_follow_calls", CHAT, {"messages": [USER, CALLED, USER, RESULT]}),
    ("add_missing_results", CHAT, {"messages": [USER, CALLED, USER]}),
    ("quote_arguments", CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": BROKEN}, RESULT]}),
    ("drop_early_prefix", CHAT, {"messages": [USER, {**ASSISTANT, "prefix": True}, USER]}),
    ("continue_last_turn", CHAT, {"messages": [USER, ASSISTANT]}),
    ("add_user_turn", CHAT, {"messages": [SYSTEM]}),
    ("merge_turns", MESSAGES, {"messages": [USER, USER]}),
    ("add_missing_results", MESSAGES, {"messages": [USER, USED, USER]}),
    ("join_repeated_results", MESSAGES, {"messages": [USER, USED, TOLD, TOLD]}),
    ("drop_billing_header", MESSAGES, {"system": BILLING}),
    ("drop_redacted_thinking", MESSAGES, {"messages": [USER, said({"type": "redacted_thinking"}, TEXT_PART), USER]}),
    ("merge_turns", RESPONSES, {"input": [USER, USER]}),
    ("continue_last_turn", RESPONSES, {"input": [USER, ASSISTANT]}),
    ("orphan_results_to_user", RESPONSES, {"input": [USER, OUTPUT]}),
    ("add_missing_results", RESPONSES, {"input": [USER, ITEM, USER]}),
]  # fmt: skip


@pytest.mark.parametrize(("repair", "path", "change"), REPAIRED)
def test_a_repair_is_named_counted_and_refusable(doors: Doors, repair: str, path: str, change: dict[str, Any]) -> None:
    async def ask(strict: bool) -> tuple[httpx.Response, str]:
        async with doors.asgi(doors.engine("Hi", "</s>"), ServerConfig(strict_history=strict)) as client:
            answer = await client.post(path, json=RIGHT[path] | change)
            return answer, (await client.get("/metrics")).text

    answer, metrics = asyncio.run(ask(strict=False))
    assert answer.status_code == 200, answer.text
    told = answer.headers["x-sparkstral-repairs"].split(", ")
    assert repair in told
    assert all(f'sparkstral_repairs_total{{repair="{name}"}} 1.0' in metrics for name in told)
    refused, metrics = asyncio.run(ask(strict=True))
    assert refused.status_code == 400
    assert repair in refused.json()["error"]["message"]
    assert "sparkstral_repairs_total{" not in metrics


def test_every_repair_is_among_those() -> None:
    assert {step.__name__ for step in STEPS} <= {repair for repair, _, _ in REPAIRED}


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (MESSAGES, {"messages": [USER, ASSISTANT]}),
        (MESSAGES, {"messages": [USER, USED, TOLD, ASSISTANT]}),
        (CHAT, {"messages": [USER, {**ASSISTANT, "prefix": True}]}),
        (CHAT, {"messages": [SYSTEM, USER, CALLED, RESULT]}),
        (RESPONSES, {"input": [USER, ITEM, OUTPUT]}),
    ],
    ids=str,
)
def test_what_a_protocol_can_say_is_no_repair(doors: Doors, path: str, change: dict[str, Any]) -> None:
    (answer,) = posted(doors, path, RIGHT[path] | change, strict_history=True)
    assert answer.status_code == 200, answer.text
    assert "x-sparkstral-repairs" not in answer.headers


@pytest.mark.parametrize(
    ("code", "type_"),
    [("engine_dead", "overloaded_error"), ("timeout", "timeout_error"), ("numerics", "api_error")],
)
def test_a_failure_in_anthropics_stream_has_its_own_type(doors: Doors, code: Any, type_: str) -> None:
    engine = doors.engine("one two three", "</s>")
    engine.fail_after = (2, Failure(code, "Not now."))

    async def ask() -> httpx.Response:
        async with doors.asgi(engine) as client:
            return await client.post(MESSAGES, json=RIGHT[MESSAGES] | {"stream": True})

    *_, last = asyncio.run(ask()).text.strip().split("\n\n")
    assert last.startswith("event: error\n")
    assert json.loads(last.partition("data: ")[2])["error"] == {"type": type_, "message": "Not now."}


def test_one_failed_answer_of_several_ends_their_stream(doors: Doors) -> None:
    engine = doors.engine("one two three", "</s>")
    engine.fail_after = (2, Failure("numerics", "Not a number."))

    async def ask() -> httpx.Response:
        async with doors.asgi(engine) as client:
            return await client.post(CHAT, json=RIGHT[CHAT] | {"stream": True, "n": 3})

    *_, last = asyncio.run(ask()).text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "numerics"


# ---- whatever tokens come together ---------------------------------------------------------------------------------


def events_of(text: str) -> list[dict[str, Any]]:
    data = [block.partition("data: ")[2] for block in text.strip().split("\n\n")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def folded_chat(events: Sequence[dict[str, Any]]) -> Any:
    text = {"content": "", "reasoning": ""}
    arguments: dict[int, list[str]] = {}
    names: list[str] = []
    for choice in (choice for event in events for choice in event["choices"]):
        for key in text:
            text[key] += choice["delta"].get(key, "")
        for call in choice["delta"].get("tool_calls", ()):
            names += [call["function"]["name"]] if "name" in call["function"] else []
            arguments.setdefault(call["index"], []).append(call["function"]["arguments"])
    return text, names, check_prefixes(arguments), events[-1]["choices"][0]["finish_reason"]


def whole_chat(answer: dict[str, Any]) -> Any:
    message = answer["choices"][0]["message"]
    called = [call["function"] for call in message.get("tool_calls", ())]
    text = {"content": message["content"] or "", "reasoning": message.get("reasoning", "")}
    return text, [c["name"] for c in called], [c["arguments"] for c in called], answer["choices"][0]["finish_reason"]


def check_prefixes(arguments: dict[int, list[str]]) -> list[str]:
    """The joined arguments; whatever has come of them is the beginning of a JSON object."""
    for deltas in arguments.values():
        try:
            from_json("".join(deltas), allow_partial="trailing-strings")
        except ValueError:
            continue  # no JSON: handed on as the model wrote it
        for i in range(1, len(deltas) + 1):
            if (begun := "".join(deltas[:i])).strip():
                assert isinstance(from_json(begun, allow_partial="trailing-strings"), dict)
    return ["".join(deltas) for _, deltas in sorted(arguments.items())]


def folded_text(events: Sequence[dict[str, Any]]) -> Any:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]


def whole_text(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]


def plain_items(response: dict[str, Any]) -> Any:
    items = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    return items, response["status"], response["usage"]


def folded_responses(events: Sequence[dict[str, Any]]) -> Any:
    deltas: dict[int, list[str]] = {}
    is_call = {}
    for event in events:
        if event["type"].endswith(".delta"):
            deltas.setdefault(event["output_index"], []).append(event["delta"])
            is_call[event["output_index"]] = "arguments" in event["type"]
    check_prefixes({index: texts for index, texts in deltas.items() if is_call[index]})
    for index, item in enumerate(events[-1]["response"]["output"]):
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(deltas.get(index, ())) == whole
    return plain_items(events[-1]["response"])


def folded_messages(events: Sequence[dict[str, Any]]) -> Any:
    blocks: list[Any] = []
    arguments: dict[int, list[str]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            match event["delta"]:
                case {"partial_json": text}:
                    arguments.setdefault(event["index"], []).append(text)
                case {"type": _, **piece}:
                    for key, value in piece.items():
                        blocks[event["index"]][key] += value
    check_prefixes(arguments)
    for index, texts in arguments.items():
        with suppress(ValueError):  # what is no JSON is no input
            blocks[index]["input"] = from_json("".join(texts), allow_partial="trailing-strings")
    (end,) = [event for event in events if event["type"] == "message_delta"]
    return plain_blocks(blocks), end["delta"]["stop_reason"], end["usage"]


def plain_blocks(blocks: Sequence[dict[str, Any]]) -> Any:
    return [{k: v for k, v in block.items() if k != "id"} for block in blocks]


def whole_messages(answer: dict[str, Any]) -> Any:
    return plain_blocks(answer["content"]), answer["stop_reason"], answer["usage"]


FOLDS: dict[str, tuple[Any, Any]] = {
    CHAT: (folded_chat, whole_chat),
    TEXT: (folded_text, whole_text),
    RESPONSES: (folded_responses, plain_items),
    MESSAGES: (folded_messages, whole_messages),
}
PIECES = st.lists(
    st.sampled_from([*ALL_KINDS, '{"a": "é日', '"}', "</s>", "x", " ", "[TOOL_CALLS]", "[ARGS]"]), max_size=12
)


@cache
def playing(tokenizer: ChatTokenizer) -> tuple[FakeEngine, Any]:
    engine = FakeEngine(lambda request: [])
    return engine, create_app(engine, tokenizer, ServerConfig())


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    pieces=st.just(ALL_KINDS) | PIECES,
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    limit=st.integers(1, 40) | st.just(900),
)
def test_the_wire_folded_is_the_whole_answer_for_any_split(
    tokenizer: ChatTokenizer, pieces: list[str], chunks: list[int], limit: int
) -> None:
    engine, app = playing(tokenizer)
    token_ids = written(tokenizer, *pieces, "x")
    engine.script = lambda request: token_ids

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            for path in ANSWERING:
                name = "max_output_tokens" if path == RESPONSES else "max_tokens"
                body = RIGHT[path] | {name: limit}
                engine.chunks = (1,)
                whole = (await client.post(path, json=body)).json()
                engine.chunks = tuple(chunks)
                stream = events_of((await client.post(path, json=body | {"stream": True})).text)
                fold, plain = FOLDS[path]
                assert fold(stream) == plain(whole), path

    asyncio.run(ask())
