"""Bad requests get the protocol's own error, naming the field, and the server serves the next request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from sparkstral.config import ServerConfig
from tests.api.conftest import MODEL, Doors
from tests.support.chat_cases import load_cases

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Say hello."}]
TOOL = {"type": "function", "function": {"name": "next_train", "parameters": {"type": "object"}}}

HTTP_CASES = [case for case in load_cases("http") if case["path"] == CHAT]
EFFORT_CASES = [case for case in load_cases("effort_values") if case["api"] == "chat"]
MESSAGE_CASES = [case for case in load_cases("message_lists") if case["api"] == "chat"]


def case_id(case: dict[str, Any]) -> str:
    return str(case["id"])


def exchange(
    doors: Doors, *requests: dict[str, Any], config: ServerConfig | None = None
) -> list[httpx.Response]:
    """The answers to `requests`, as arguments of httpx; a good one that must succeed follows each."""
    engine = doors.engine("Hello!", "</s>")

    async def talk() -> list[httpx.Response]:
        answers = []
        async with doors.asgi(engine, config) as client:
            for request in requests:
                answers.append(await client.request(**{"method": "POST", "url": CHAT, **request}))
                next_one = await client.post(CHAT, json={"model": MODEL, "messages": HELLO})
                assert next_one.status_code == 200
        return answers

    return asyncio.run(talk())


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object, in OpenAI's form with a sentence in it."""
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) > 10
    return error


@pytest.mark.parametrize("case", HTTP_CASES, ids=case_id)
def test_known_bad_requests(doors: Doors, case: dict[str, Any]) -> None:
    if "body" in case:
        text = json.dumps(case["body"])
    else:
        text = case.get("body_text") or "".join(part * times for part, times in case["body_parts"])
    request = {"content": text.replace("@MODEL@", MODEL), "headers": {"content-type": "application/json"}}
    (answer,) = exchange(doors, {"method": case["method"], "url": case["path"], **request})
    assert answer.status_code in case["expect_status"]
    error = error_of(answer)
    if case["expect_param"] is not None and answer.status_code != 413:
        assert case["expect_param"] in (error["param"] or "") or case["expect_param"] in error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [*HELLO, {"role": "narrator", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "messages[0].content[0]",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("-inf")}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"seed": 1 << 70}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x", ""]}, "stop[1]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": 3}, "stop"),
        ({"n": 33}, "n"),
        ({"n": 0}, "n"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": 9, "response_format": {"type": "json_object"}}, "min_tokens"),
        ({"ignore_eos": True, "tools": [TOOL]}, "ignore_eos"),
        ({"functions": [{"name": "x"}]}, "functions"),
        ({"guided_json": {}}, "guided_json"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"tools": [{"type": "function", "function": {"description": "x"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "x", "parameters": {"minimum": float("inf")}}}
                ]
            },
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"temprature": 1}, "temprature"),
        ({"maxTokens": 1}, "maxTokens"),
    ],
    ids=repr,
)
def test_a_wrong_field_is_named(doors: Doors, change: dict[str, Any], param: str) -> None:
    body = json.dumps({"model": MODEL, "messages": HELLO, **change})  # json.dumps writes NaN and Infinity
    (answer,) = exchange(doors, {"content": body, "headers": {"content-type": "application/json"}})
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_a_misspelt_field_is_told_its_right_spelling(doors: Doors) -> None:
    answers = exchange(
        doors, *({"json": {"messages": HELLO, name: 1}} for name in ("temprature", "maxTokens"))
    )
    assert "`temperature`" in error_of(answers[0])["message"]
    assert "`max_tokens`" in error_of(answers[1])["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b'{"messages": [}',
        b'"text"',
        b"null",
        b"\xff\xfe\x00",
        b'{"messages": "\xc3\x28"}',
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"seed": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_no_json_object(doors: Doors, body: bytes) -> None:
    (answer,) = exchange(doors, {"content": body, "headers": {"content-type": "application/json"}})
    assert answer.status_code == 400
    assert "JSON" in error_of(answer)["message"]


def test_other_content_types_are_refused_and_a_missing_one_is_json(doors: Doors) -> None:
    body = json.dumps({"messages": HELLO})
    wrong = [
        {"content": body, "headers": {"content-type": kind}} for kind in ("text/plain", "multipart/form-data")
    ]
    right = [
        {"content": body},
        {"content": body, "headers": {"content-type": "application/json; charset=utf-8"}},
        {"content": b"\xef\xbb\xbf" + body.encode()},
    ]
    answers = exchange(doors, *wrong, *right)
    assert [answer.status_code for answer in answers] == [415, 415, 200, 200, 200]
    assert "application/json" in error_of(answers[0])["message"]


def test_a_body_that_is_too_large_is_refused(doors: Doors) -> None:
    config = ServerConfig(max_body_bytes=2000)
    bodies = [json.dumps({"messages": [{"role": "user", "content": "x" * n}]}) for n in (100, 5000, 50_000)]
    answers = exchange(doors, *({"content": body} for body in bodies), config=config)
    assert [answer.status_code for answer in answers] == [200, 413, 413]
    assert "1.95 KiB" in error_of(answers[1])["message"]


def test_unknown_paths_methods_and_models(doors: Doors) -> None:
    path, method, model = exchange(
        doors,
        {"url": "/v1/chatter"},
        {"method": "GET"},
        {"json": {"model": "gpt-9", "messages": HELLO}},
    )
    assert (path.status_code, error_of(path)["code"]) == (404, "not_found")
    assert (method.status_code, error_of(method)["code"]) == (405, "method_not_allowed")
    assert method.headers["allow"] == "POST"
    assert (model.status_code, error_of(model)["code"]) == (404, "model_not_found")
    assert MODEL in error_of(model)["message"]


def test_vendor_extras_and_neutral_values_pass_and_what_changed_nothing_is_told(doors: Doors) -> None:
    message = {"role": "user", "content": "Hi", "weight": 1}
    body = {
        "messages": [message, message], "n": 1, "logprobs": False, "presence_penalty": 0, "logit_bias": {},
        "repetition_penalty": 1.0, "top_k": -1, "tools": [], "stop": None, "temperature": None, "user": "u",
        "metadata": {}, "store": True, "top_a": 0.3, "bad\nname": 1, "reasoning_effort": "xhigh",
    }  # fmt: skip
    (answer,) = exchange(doors, {"json": body})
    assert answer.status_code == 200
    assert answer.headers["x-sparkstral-ignored"] == "top_a, messages[].weight, user, metadata, store, and 1 more"
    assert answer.headers["x-sparkstral-reasoning-effort"] == "high"
    assert answer.headers["x-sparkstral-repairs"] == "merge_turns"
    assert answer.headers["x-request-id"] == answer.json()["id"]


@pytest.mark.parametrize("case", EFFORT_CASES, ids=case_id)
def test_reasoning_effort(doors: Doors, case: dict[str, Any]) -> None:
    (answer,) = exchange(doors, {"json": {"messages": HELLO, **case["body"]}})
    if isinstance(case["expect"], dict):
        assert answer.status_code == case["expect"]["reject"]
        assert error_of(answer)["param"] == case["expect"]["param"]
    else:
        assert answer.headers["x-sparkstral-reasoning-effort"] == case["expect"]


@pytest.mark.parametrize("case", MESSAGE_CASES, ids=case_id)
def test_message_lists(doors: Doors, case: dict[str, Any]) -> None:
    engine = doors.engine("Hello!", "</s>")

    async def post() -> httpx.Response:
        async with doors.asgi(engine) as client:
            return await client.post(CHAT, json=case["request"])

    answer = asyncio.run(post())
    if isinstance(case["expect"], dict):
        assert answer.status_code == case["expect"]["reject"]
        assert (error_of(answer)["param"] or "").startswith(case["expect"]["param"])
        return
    assert answer.status_code == 200
    prompt = engine.requests[0].prompt_token_ids
    if "expect_ids" in case:
        assert list(prompt) == case["expect_ids"]
    if "expect_control_ids" in case:
        assert [i for i in prompt if i < 1000] == case["expect_control_ids"]


def test_with_strict_history_a_list_is_refused_instead_of_repaired(doors: Doors) -> None:
    bodies = [{"messages": HELLO}, {"messages": [*HELLO, *HELLO]}]
    right, wrong = exchange(doors, *({"json": body} for body in bodies), config=ServerConfig(strict_history=True))
    assert (right.status_code, wrong.status_code) == (200, 400)
    assert error_of(wrong)["param"] == "messages"
    assert "merge_turns" in error_of(wrong)["message"]
