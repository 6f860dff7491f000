"""The messages protocol as Anthropic's official SDK sees it, and on the wire, over a scripted engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import pytest

from sparkstral.config import ServerConfig
from sparkstral.types import EnginePhase, EngineStatus, Failure
from tests.api.conftest import MODEL, Doors
from tests.support.chat_cases import load_cases
from tests.support.fake_engine import FakeEngine

PATH = "/v1/messages"
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather of a town",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}
TWO_CALLS = [
    "I look. ",
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Bergen"}',
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Tromsø"}',
    "</s>",
]  # fmt: skip
STREAM_CASES = load_cases("anthropic_streams")
MESSAGE_CASES = [case for case in load_cases("message_lists") if case["api"] == "messages"]
EFFORT_CASES = [case for case in load_cases("effort_values") if case["api"] == "messages"]
HTTP_CASES = [case for case in load_cases("http") if case["path"] == PATH]
BOTH = pytest.mark.parametrize("stream", [False, True])


def case_id(case: dict[str, Any]) -> str:
    return str(case["id"])


def sdk(doors: Doors, engine: FakeEngine, config: ServerConfig | None = None) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=doors.url(engine, config), api_key="none", max_retries=0)


def ask(client: anthropic.Anthropic, stream: bool, **body: Any) -> anthropic.types.Message:
    """The message, as the official client puts it together."""
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 500, **body}
    if not stream:
        return client.messages.create(**body)
    with client.messages.stream(**body) as events:
        return events.get_final_message()  # type: ignore[return-value]


def post(doors: Doors, engine: FakeEngine, body: dict[str, Any], path: str = PATH) -> httpx.Response:
    async def send() -> httpx.Response:
        async with doors.asgi(engine) as client:
            return await client.post(path, json=body)

    return asyncio.run(send())


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; each is named as its own type is."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in block.items() if k not in ("id", "signature")} for block in blocks]


@BOTH
@pytest.mark.parametrize("case", STREAM_CASES, ids=case_id)
def test_known_answers(doors: Doors, case: dict[str, Any], stream: bool) -> None:
    tools = [{**WEATHER, "name": name} for name in ("tide_table", "get_forecast")]
    client = sdk(doors, FakeEngine(lambda request: case["output_ids"]))
    message = ask(client, stream, tools=tools, thinking={"type": "enabled", "budget_tokens": 1024})
    assert without_ids([block.to_dict() for block in message.content]) == case["expect_blocks"]
    assert message.stop_reason == case["stop_reason"]
    assert all(block.signature for block in message.content if block.type == "thinking")
    assert message.usage.output_tokens == len(case["output_ids"])


@pytest.mark.parametrize("case", [*STREAM_CASES, {"id": "two calls", "output": TWO_CALLS}], ids=case_id)
def test_the_events_of_a_stream_come_in_the_protocols_order(doors: Doors, case: dict[str, Any]) -> None:
    engine = doors.engine(*case["output"])
    body = {"messages": HELLO, "max_tokens": 500, "tools": [WEATHER], "stream": True}
    events = events_of(post(doors, engine, body))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    start = events[0]["message"]
    assert (start["role"], start["content"], start["stop_reason"]) == ("assistant", [], None)
    assert start["usage"]["input_tokens"] == len(engine.requests[0].prompt_token_ids)
    allowed = {
        "text": {"text_delta"},
        "thinking": {"thinking_delta", "signature_delta"},
        "tool_use": {"input_json_delta"},
    }
    index, kind, joined = -1, None, ""
    for event in events[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert (kind, event["index"]) == (None, index + 1)
                index, kind, joined = event["index"], event["content_block"]["type"], ""
            case "content_block_delta":
                assert event["index"] == index
                assert event["delta"]["type"] in allowed[str(kind)]
                joined += next(str(v) for k, v in event["delta"].items() if k != "type")
            case "content_block_stop":
                assert event["index"] == index
                assert joined, "an empty block was sent"
                if kind == "tool_use":
                    assert isinstance(json.loads(joined), dict)
                kind = None
            case other:
                raise AssertionError(other)
    assert kind is None


@BOTH
def test_parallel_calls_and_what_forbids_them(doors: Doors, stream: bool) -> None:
    engine = doors.engine(*TWO_CALLS)
    client = sdk(doors, engine)
    message = ask(client, stream, tools=[WEATHER])
    assert message.stop_reason == "tool_use"
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [
        ("get_weather", {"town": "Bergen"}),
        ("get_weather", {"town": "Tromsø"}),
    ]
    assert len({call.id for call in calls}) == 2
    ask(client, stream, tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True})
    auto, single = (request.grammar.lark for request in engine.requests if request.grammar)
    assert "calls: call+" in auto
    assert "calls: call\n" in single + "\n"


@pytest.mark.parametrize(
    ("choice", "must_call"), [("auto", False), ("any", True), ("tool", True), ("none", None)], ids=str
)
def test_tool_choices(doors: Doors, choice: str, must_call: bool | None) -> None:
    engine = doors.engine("Hi", "</s>")
    name = {"name": "get_weather"} if choice == "tool" else {}
    ask(sdk(doors, engine), False, tools=[WEATHER], tool_choice={"type": choice, **name})
    (request,) = engine.requests
    assert (request.sampling.banned_token_ids == (9,)) == (must_call is None)
    assert (request.grammar is None) == (must_call is None)
    assert request.grammar is None or ("answer: calls" in request.grammar.lark) == must_call


@BOTH
def test_a_stop_sequence_is_named(doors: Doors, stream: bool) -> None:
    engine = doors.engine("one two thr", "ee four five", "</s>")
    message = ask(sdk(doors, engine), stream, stop_sequences=["zzz", "three"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "three")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "one two "}]


@BOTH
def test_the_limit_that_ended_an_answer_is_told_apart(doors: Doors, stream: bool) -> None:
    engine = doors.engine("one two three four five six seven", "</s>")
    client = sdk(doors, engine)
    assert ask(client, stream, max_tokens=3).stop_reason == "max_tokens"
    engine.max_model_len = len(engine.requests[0].prompt_token_ids) + 2
    assert ask(client, stream, max_tokens=3).stop_reason == "model_context_window_exceeded"


@BOTH
def test_arguments_that_were_cut_are_given_as_far_as_they_are_whole(doors: Doors, stream: bool) -> None:
    engine = doors.engine("[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Bergen", "day": "Mon')
    message = ask(sdk(doors, engine), stream, tools=[WEATHER])
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.content[0].type == "tool_use"
    assert message.content[0].input["town"] == "Bergen"


def test_what_was_read_from_the_cache_is_counted_apart(doors: Doors) -> None:
    engine = doors.engine("[THINK]", "Hm.", "[/THINK]", "Hi", "</s>")
    engine.num_cached_tokens = 5
    for stream in (False, True):
        usage = ask(sdk(doors, engine), stream).usage
        assert usage.cache_read_input_tokens == 5
        assert usage.input_tokens + 5 == len(engine.requests[0].prompt_token_ids)
        assert usage.output_tokens_details is not None
        assert usage.output_tokens_details.thinking_tokens > 0


@pytest.mark.parametrize("case", MESSAGE_CASES, ids=case_id)
def test_message_lists(doors: Doors, case: dict[str, Any]) -> None:
    engine = doors.engine("Hello!", "</s>")
    assert post(doors, engine, case["request"]).status_code == 200
    assert list(engine.requests[0].prompt_token_ids) == case["expect_ids"]
    body = {key: value for key, value in case["request"].items() if key != "max_tokens"}
    counted = post(doors, engine, body, f"{PATH}/count_tokens")
    assert counted.json() == {"input_tokens": len(case["expect_ids"])}


@pytest.mark.parametrize("case", EFFORT_CASES, ids=case_id)
def test_reasoning_effort(doors: Doors, case: dict[str, Any]) -> None:
    answer = post(doors, doors.engine("Hi", "</s>"), {"messages": HELLO, **case["body"]})
    assert answer.headers["x-sparkstral-reasoning-effort"] == case["expect"]


@pytest.mark.parametrize(
    ("body", "effort"),
    [
        ({"thinking": {"type": "adaptive"}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "none"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, "none"),
        ({}, "none"),
    ],
    ids=repr,
)
def test_what_two_fields_say_of_the_effort(doors: Doors, body: dict[str, Any], effort: str) -> None:
    answer = post(doors, doors.engine("Hi", "</s>"), {"messages": HELLO, "max_tokens": 9, **body})
    assert answer.headers["x-sparkstral-reasoning-effort"] == effort


@pytest.mark.parametrize("case", HTTP_CASES, ids=case_id)
def test_known_bad_requests(doors: Doors, case: dict[str, Any]) -> None:
    body = json.loads(json.dumps(case["body"]).replace("@MODEL@", MODEL))
    answer = post(doors, doors.engine("Hi", "</s>"), body)
    assert answer.status_code in case["expect_status"]
    assert case["expect_param"] in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, "content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "content[0].source"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "http://x"}}]}
                ]
            },
            "messages[0].content[0].source",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "input_schema": {"type": "strng"}}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "output_config.format"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ({"max_token": 3}, "max_token"),
    ],
    ids=repr,
)
def test_a_wrong_field_is_named_in_anthropics_error(doors: Doors, change: dict[str, Any], place: str) -> None:
    answer = post(doors, doors.engine("Hi", "</s>"), {"messages": HELLO, "max_tokens": 9, **change})
    assert answer.status_code == 400
    body = answer.json()
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert place in body["error"]["message"]


def test_errors_reach_the_sdk_as_its_own(doors: Doors) -> None:
    engine = doors.engine("one two three", "</s>")
    engine.max_model_len = 40
    client = sdk(doors, engine)
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 40 maximum"):
        ask(client, False, messages=[{"role": "user", "content": "tide " * 90}])
    with pytest.raises(anthropic.NotFoundError, match=MODEL):
        ask(client, False, model="claude-9")
    engine.fail_after = (0, Failure("numerics", "Not a number."))
    for stream in (False, True):
        with pytest.raises(anthropic.InternalServerError, match="Not a number"):
            ask(client, stream)
    engine.fail_after = (2, Failure("engine_dead", "The engine process ended."))
    with pytest.raises(anthropic.APIStatusError, match="The engine process ended"):
        ask(client, True)
    engine.now = EngineStatus(EnginePhase.LOADING, 0.5)
    with pytest.raises(anthropic.APIStatusError, match="loading") as caught:
        ask(client, False)
    assert (caught.value.status_code, caught.value.body["error"]["type"]) == (503, "overloaded_error")  # type: ignore[index]


def prompt_of(doors: Doors, **body: Any) -> tuple[str, httpx.Response]:
    engine = doors.engine("Hi", "</s>")
    answer = post(doors, engine, {"messages": HELLO, "max_tokens": 9, **body})
    assert answer.status_code == 200, answer.text
    return doors.spelled(engine.requests[0].prompt_token_ids), answer


def test_blocks_of_all_kinds_are_read(doors: Doors) -> None:
    content = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "no"},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": t} for t in "ab"]},
        {"type": "text", "text": "Read:", "cache_control": {"type": "ephemeral"}},
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "doc"}},
        {"type": "search_result", "title": "S", "source": "u", "content": [{"type": "text", "text": "found"}]},
    ]
    calls = [{"type": "tool_use", "id": f"toolu_{i}", "name": "f", "input": {"i": i}} for i in (1, 2)]
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f;"}
    prompt, answer = prompt_of(
        doors,
        system=[billing, {"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
        messages=[*HELLO, {"role": "assistant", "content": [hidden, *calls]}, {"role": "user", "content": content}],
    )
    assert "[SYSTEM_PROMPT]Be\n\nbrief.[/SYSTEM_PROMPT]" in prompt
    assert "[TOOL_RESULTS]Error: no[/TOOL_RESULTS][TOOL_RESULTS]a\n\nb[/TOOL_RESULTS]" in prompt
    assert "[INST]Read:\n\nT\ndoc\n\nS (u)\nfound[/INST]" in prompt
    repairs = answer.headers["x-sparkstral-repairs"].split(", ")
    assert repairs[:2] == ["drop_billing_header", "drop_redacted_thinking"]
    ignored = "messages[].content[].data, messages[].content[].cache_control"
    assert answer.headers["x-sparkstral-ignored"] == ignored


def test_an_answer_goes_on_where_its_beginning_was_sent(doors: Doors) -> None:
    prompt, _ = prompt_of(doors, messages=[*HELLO, {"role": "assistant", "content": "Hel"}])
    assert prompt.endswith("[/INST]Hel")


def test_an_answer_in_json_has_a_grammar(doors: Doors) -> None:
    engine = doors.engine("{}", "</s>")
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    output = {"format": {"type": "json_schema", "schema": schema}}
    ask(sdk(doors, engine), False, output_config=output)
    assert engine.requests[0].grammar is not None


def test_count_tokens_with_the_sdk(doors: Doors) -> None:
    client = sdk(doors, engine := doors.engine("Hi", "</s>"))
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.", tools=[WEATHER])
    ask(client, False, system="Be brief.", tools=[WEATHER])
    assert counted.input_tokens == len(engine.requests[0].prompt_token_ids)


def test_the_models_are_listed_in_anthropics_form(doors: Doors) -> None:
    client = sdk(doors, doors.engine("Hi", "</s>"))
    (model,) = client.models.list().data
    assert (model.id, model.type, model.max_input_tokens) == (MODEL, "model", 4096)
    assert client.models.retrieve(MODEL).display_name == model.display_name
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude-9")
