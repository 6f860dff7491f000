"""The protocol of responses as the official SDK sees it, and on the wire, over a scripted engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from sparkstral.api.openai_responses.store import ResponseStore
from sparkstral.types import ChatMessage, Failure, TextPart
from tests.api.conftest import MODEL, Doors
from tests.support.chat_cases import load_cases
from tests.support.fake_engine import FakeEngine

PATH = "/v1/responses"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a town",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    "strict": False,
}
ALL_KINDS = [
    "[THINK]", "Both towns.", "[/THINK]", "I look. ",
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Bergen"}',
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Tromsø"}',
    "</s>",
]  # fmt: skip
BOTH = pytest.mark.parametrize("stream", [False, True])
EFFORT_CASES = [case for case in load_cases("effort_values") if case["api"] == "responses"]


def ask(client: openai.OpenAI, stream: bool, **body: Any) -> Any:
    """The response, as the official client puts it together."""
    body = {"model": MODEL, "input": "Say hello.", **body}
    if not stream:
        return client.responses.create(**body)
    with client.responses.create(**body, stream=True) as events:
        *_, last = events
    return last.response


def post(doors: Doors, engine: FakeEngine, body: dict[str, Any]) -> httpx.Response:
    async def send() -> httpx.Response:
        async with doors.asgi(engine) as client:
            return await client.post(PATH, json={"input": "Say hello.", **body})

    return asyncio.run(send())


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_the_clients_own_way_to_follow_a_stream(doors: Doors) -> None:
    with doors.sdk(doors.engine(*ALL_KINDS)).responses.stream(model=MODEL, input="x", tools=[WEATHER]) as events:
        texts = [event.delta for event in events if event.type == "response.output_text.delta"]
        final = events.get_final_response()
    assert "".join(texts) == final.output_text == "I look. "
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]


@BOTH
def test_a_text(doors: Doors, stream: bool) -> None:
    engine = doors.engine("Hello, ", "Åse!", "</s>")
    engine.num_cached_tokens = 3
    response = ask(doors.sdk(engine), stream, instructions="Be brief.", metadata={"k": "v"}, temperature=0.5)
    assert (response.status, response.output_text, response.model) == ("completed", "Hello, Åse!", MODEL)
    assert (response.temperature, response.top_p, response.metadata) == (0.5, 1.0, {"k": "v"})
    assert response.usage.input_tokens == len(engine.requests[0].prompt_token_ids)
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert doors.spelled(engine.requests[0].prompt_token_ids).startswith("<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT]")


@BOTH
def test_reasoning_words_and_parallel_calls_are_items(doors: Doors, stream: bool) -> None:
    response = ask(doors.sdk(doors.engine(*ALL_KINDS)), stream, tools=[WEATHER], reasoning={"effort": "high"})
    reasoning, message, *calls = response.output
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert "".join(part.text for part in reasoning.content) == "Both towns."
    assert message.content[0].text == "I look. "
    assert [json.loads(call.arguments)["town"] for call in calls] == ["Bergen", "Tromsø"]
    assert len({call.call_id for call in calls}) == 2
    assert all(item.status == "completed" for item in response.output)
    assert response.usage.output_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize("summary", [None, "auto"])
def test_the_events_of_a_stream_come_in_the_protocols_order(doors: Doors, summary: str | None) -> None:
    body = {"stream": True, "tools": [WEATHER], "reasoning": {"effort": "high", "summary": summary}}
    events = events_of(post(doors, doors.engine(*ALL_KINDS), body))
    kinds = [event["type"].removeprefix("response.") for event in events]
    without_repeats = [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    thinking = (
        ["content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"]
        if summary is None
        else [f"reasoning_summary_{kind}" for kind in ("part.added", "text.delta", "text.done", "part.done")]
    )
    text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    call = ["function_call_arguments.delta", "function_call_arguments.done"]

    def item(inner: list[str]) -> list[str]:
        return ["output_item.added", *inner, "output_item.done"]

    expected = ["created", "in_progress", *item(thinking), *item(text), *item(call), *item(call), "completed"]
    assert without_repeats == expected
    final = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert final["output"] == done
    for event in events:
        if event["type"].endswith(".delta"):
            assert event["item_id"] == done[event["output_index"]]["id"]
    for kind, whole in (("output_text", "text"), ("function_call_arguments", "arguments")):
        for index in range(4):
            parts = [e["delta"] for e in events if e["type"] == f"response.{kind}.delta" and e["output_index"] == index]
            ends = [e[whole] for e in events if e["type"] == f"response.{kind}.done" and e["output_index"] == index]
            assert ["".join(parts)] == ends or not ends


@BOTH
def test_a_cut_answer_is_incomplete(doors: Doors, stream: bool) -> None:
    response = ask(doors.sdk(doors.engine("one two three four", "</s>")), stream, max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.output_text, response.output[0].status) == ("one two", "incomplete")


@BOTH
def test_the_talk_goes_on_from_a_response_that_is_kept(doors: Doors, stream: bool) -> None:
    engine = doors.engine(*ALL_KINDS)
    client = doors.sdk(engine)
    body: Any = {"tools": [WEATHER], "reasoning": {"effort": "high"}}
    first = ask(client, stream, instructions="Only once.", **body)
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    second = ask(client, stream, previous_response_id=first.id, input=results, **body)
    assert second.previous_response_id == first.id
    sent = [{"role": "user", "content": "Say hello."}, *(item.to_dict() for item in first.output), *results]
    ask(client, stream, input=sent, store=False, **body)
    _, kept, whole = (request.prompt_token_ids for request in engine.requests)
    assert kept == whole
    prompt = doors.spelled(kept)
    assert "Only once" not in prompt
    assert "[THINK]Both towns.[/THINK]I look." in prompt
    assert prompt.endswith("[TOOL_RESULTS]rain[/TOOL_RESULTS][TOOL_RESULTS]rain[/TOOL_RESULTS]")
    assert client.responses.retrieve(first.id).output == first.output
    client.responses.delete(first.id)
    for gone in (first.id, "resp_x"):
        with pytest.raises(openai.NotFoundError, match="kept in memory"):
            client.responses.retrieve(gone)
        with pytest.raises(openai.NotFoundError, match="Send the whole talk"):
            ask(client, stream, previous_response_id=gone)


@BOTH
@pytest.mark.parametrize("limit", [None, 1])
def test_an_answer_without_a_word_is_kept_too(doors: Doors, stream: bool, limit: int | None) -> None:
    client = doors.sdk(doors.engine(*(["</s>"] if limit is None else ["[THINK]", "x", "</s>"])))
    response = ask(client, stream, **({} if limit is None else {"max_output_tokens": limit}))
    assert response.output == []
    assert client.responses.retrieve(response.id).status == ("completed" if limit is None else "incomplete")


def test_a_clients_own_ids_of_calls_hold_through_the_talk(doors: Doors) -> None:
    client = doors.sdk(engine := doors.engine("Hi", "</s>"))
    call = {"type": "function_call", "call_id": "toolu_Ab-1/é", "name": "get_weather", "arguments": "{}"}
    first = ask(client, False, input=[{"role": "user", "content": "Weather?"}, call])
    told = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    answer = post(doors, engine, {"input": [{"role": "user", "content": "Weather?"}, call, told]})
    assert answer.headers["x-sparkstral-repairs"] == "native_tool_ids"
    assert "[TOOL_RESULTS]rain" in doors.spelled(engine.requests[-1].prompt_token_ids)
    ask(client, False, previous_response_id=first.id, input=[told])
    assert "rain" in doors.spelled(engine.requests[-1].prompt_token_ids)


def test_a_response_that_is_not_to_be_kept_is_not(doors: Doors) -> None:
    client = doors.sdk(doors.engine("Hi", "</s>"))
    response = ask(client, False, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_reasoning_comes_back_in_any_of_its_forms(doors: Doors) -> None:
    engine = doors.engine(*ALL_KINDS[:4], "</s>")
    client = doors.sdk(engine)
    sent: list[dict[str, Any]] = []
    for reasoning in ({"effort": "high"}, {"effort": "high", "summary": "auto"}):
        response = ask(client, False, reasoning=reasoning, include=["reasoning.encrypted_content"])
        sent.append(response.output[0].to_dict())
    sent.append({**sent[0], "content": None, "summary": []})
    assert sent[1]["summary"][0]["text"] == sent[0]["content"][0]["text"] == "Both towns."
    for item in sent:
        answered = [item, {"role": "assistant", "content": "I look."}, {"role": "user", "content": "And?"}]
        ask(client, False, input=[{"role": "user", "content": "Hi"}, *answered])
        assert "[THINK]Both towns.[/THINK]I look." in doors.spelled(engine.requests[-1].prompt_token_ids)


@BOTH
def test_log_probabilities_are_sent_when_they_are_asked_for(doors: Doors, stream: bool) -> None:
    client = doors.sdk(doors.engine("Hello!", "</s>"))
    response = ask(client, stream, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = response.output[0].content[0].logprobs
    assert "".join(item.token for item in logprobs) == "Hello!"
    assert len(logprobs[0].top_logprobs) == 2
    assert not ask(client, stream).output[0].content[0].logprobs


def test_tools_that_openai_would_run_are_left_out_with_a_word(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    tools = [WEATHER, {"type": "web_search"}, {"type": "mcp", "server_label": "deepwiki"}]
    answer = post(doors, engine, {"tools": tools, "include": ["web_search_call.results"]})
    assert answer.status_code == 200
    ignored = answer.headers["x-sparkstral-ignored"]
    assert "tools[1].web_search, tools[2].mcp, include.web_search_call.results" in ignored
    assert "deepwiki" not in doors.spelled(engine.requests[0].prompt_token_ids)


def test_json_is_held_to_its_schema(doors: Doors) -> None:
    engine = doors.engine("{}", "</s>")
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    response = ask(doors.sdk(engine), False, text=text)
    assert engine.requests[0].grammar is not None
    assert response.text.format.type == "json_schema"


@pytest.mark.parametrize("case", EFFORT_CASES, ids=lambda case: case["id"])
def test_reasoning_effort(doors: Doors, case: dict[str, Any]) -> None:
    answer = post(doors, doors.engine("Hi", "</s>"), case["body"])
    assert answer.headers["x-sparkstral-reasoning-effort"] == case["expect"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "smell"}]}, "input[0].type"),
        ({"input": [{"role": "narrator", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input[0].arguments"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": "turbo"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_token": 5}, "max_output_token"),
    ],
    ids=repr,
)
def test_a_wrong_field_is_named(doors: Doors, change: dict[str, Any], param: str) -> None:
    answer = post(doors, doors.engine("Hi", "</s>"), change)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_failures(doors: Doors) -> None:
    engine = doors.engine("one two three", "</s>")
    engine.fail_after = (0, Failure("numerics", "Not a number."))
    client = doors.sdk(engine)
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="Not a number"):
            ask(client, stream)
    engine.fail_after = (2, Failure("engine_dead", "The engine process ended."))
    with pytest.raises(openai.InternalServerError, match="The engine process ended"):
        ask(client, False)
    *_, last = events_of(post(doors, engine, {"stream": True}))
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["message"] == "The engine process ended."


def test_the_store_forgets_what_was_not_used_for_longest() -> None:
    store = ResponseStore(max_bytes=6000)
    for i in range(4):
        store.add({"id": str(i)}, (ChatMessage("user", (TextPart("x" * 300),)),))
        assert store.get("0") is not None
    assert [i for i in range(4) if store.get(str(i))] == [0, 2, 3]
    store.add({"id": "large"}, (ChatMessage("user", (TextPart("x" * 3000),)),))
    assert store.get("large") is None
    assert store.delete("3")
    assert not store.delete("3")
