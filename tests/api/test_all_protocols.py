"""What holds in every protocol alike, over a scripted engine."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import anthropic
import httpx
import openai
import pytest

from sparkstral.config import ServerConfig
from tests.api.conftest import MODEL, Doors
from tests.support.fake_engine import FakeEngine

SCHEMA: Any = {"type": "object", "properties": {"town": {"type": "string"}}}
USER: Any = [{"role": "user", "content": "Rain in Bergen?"}]
CHAT = ("/v1/chat/completions", {"messages": USER})
RESPONSES = ("/v1/responses", {"input": USER})
MESSAGES = ("/v1/messages", {"messages": USER, "max_tokens": 4})
EVERY = pytest.mark.parametrize(("path", "body"), [CHAT, RESPONSES, MESSAGES], ids=["chat", "responses", "messages"])
TOOL: dict[str, Any] = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    "/v1/responses": {"type": "function", "name": "get_weather", "parameters": SCHEMA},
    "/v1/messages": {"name": "get_weather", "input_schema": SCHEMA},
}


def post(
    doors: Doors,
    engine: FakeEngine,
    path: str,
    body: dict[str, Any],
    config: ServerConfig | None = None,
    **headers: str,
) -> httpx.Response:
    async def send() -> httpx.Response:
        async with doors.asgi(engine, config) as client:
            return await client.post(path, json=body, headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize("stream", [False, True])
@EVERY
def test_a_call_that_is_cut_inside_its_name_is_no_text(
    doors: Doors, path: str, body: dict[str, Any], stream: bool
) -> None:
    body = {**body, "tools": [TOOL[path]], "stream": stream}
    answer = post(doors, doors.engine("[TOOL_CALLS]", "zebra zebra zebra"), path, body)
    assert answer.status_code == 200
    assert "zebra" not in answer.text
    assert re.search('"(length|max_output_tokens|max_tokens)"', answer.text)


@EVERY
def test_fields_of_other_servers_are_no_typos(doors: Doors, path: str, body: dict[str, Any]) -> None:
    extras = dict.fromkeys(("models", "max_new_tokens", "reasoning_format", "mode"), 1)
    answer = post(doors, doors.engine("Hi", "</s>"), path, {**body, **extras})
    assert answer.status_code == 200
    assert set(extras) <= set(answer.headers["x-sparkstral-ignored"].split(", "))


def test_official_clients_do_not_ask_again_after_a_deadline(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.hang_after = 0
    url = doors.url(engine, ServerConfig(request_timeout_s=0.1))
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2)
    with client, pytest.raises(openai.InternalServerError, match="not complete") as ours:
        client.chat.completions.create(model=MODEL, messages=USER)
    other = anthropic.Anthropic(base_url=url, api_key="none", max_retries=2)
    with other, pytest.raises(anthropic.InternalServerError, match="not complete") as theirs:
        other.messages.create(model=MODEL, messages=USER, max_tokens=4)
    assert ours.value.status_code == theirs.value.status_code == 504
    assert len(engine.requests) == 2


@pytest.mark.parametrize("expects", [True, False])
def test_a_body_that_is_declared_too_large_is_refused_before_it_comes(doors: Doors, expects: bool) -> None:
    url = httpx.URL(doors.url(doors.engine("Hi", "</s>")))
    num_bytes = ServerConfig().max_body_bytes + 1 if expects else 99_999_999_999
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {num_bytes}\r\n"
    with socket.create_connection((url.host, url.port or 0), timeout=20) as connection:
        connection.sendall(f"{head}{'Expect: 100-continue' if expects else 'Accept: */*'}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))  # its end is the connection's
    assert answer.startswith(b"HTTP/1.1 413 ")


@EVERY
def test_what_of_a_schema_is_not_enforced_is_told(doors: Doors, path: str, body: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    asked, place = {
        "/v1/chat/completions": (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
            "response_format",
        ),
        "/v1/responses": ({"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}, "text.format"),
        "/v1/messages": (
            {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
            "output_config.format",
        ),
    }[path]
    answer = post(doors, doors.engine("{}", "</s>"), path, {**body, **asked})
    assert answer.headers["x-sparkstral-not-enforced"] == f"{place}.properties.tags.uniqueItems"


def test_a_header_counts_what_it_has_no_room_for(doors: Doors) -> None:
    path, body = CHAT
    extras = {**{f"extra_{i}": 1 for i in range(25)}, "no header's name": 1}
    told = post(doors, doors.engine("Hi", "</s>"), path, {**body, **extras}).headers["x-sparkstral-ignored"]
    assert told.split(", ")[19:] == ["extra_19", "and 6 more"]


def raw(doors: Doors, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
    async def send() -> list[httpx.Response]:
        async with doors.asgi(doors.engine("Hi", "</s>")) as client:
            return [await client.request(method, url, **more) for method, url, more in requests]

    return asyncio.run(send())


def test_half_a_surrogate_pair_is_told_as_a_replacement(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")

    async def send(text: str) -> int:
        async with doors.asgi(engine) as client:
            body = json.dumps(CHAT[1]).replace(USER[0]["content"], text)
            return (await client.post(CHAT[0], content=body)).status_code

    texts = (r"a\ud83d", r"\udc00\ud83d\ude00", r"\\ud83d\ud800")
    assert [asyncio.run(send(text)) for text in texts] == [200, 200, 200]
    prompts = [doors.spelled(request.prompt_token_ids) for request in engine.requests]
    for prompt, told in zip(prompts, ("a\ufffd", "\ufffd😀", "\\ud83d\ufffd"), strict=True):
        assert prompt.endswith(f"[INST]{told}[/INST]")


def test_bodies_that_are_encoded_are_refused_as_that(doors: Doors) -> None:
    path, body = CHAT
    (answer,) = raw(doors, ("POST", path, {"json": body, "headers": {"content-encoding": "gzip"}}))
    assert (answer.status_code, "gzip" in answer.json()["error"]["message"]) == (415, True)


def test_what_a_path_allows_is_all_of_it(doors: Doors) -> None:
    wrong, head, long = raw(
        doors, ("PUT", "/v1/responses/resp_1", {}), ("HEAD", "/v1/models", {}), ("GET", "/" + "x" * 60_000, {})
    )
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "DELETE, GET")
    assert "takes DELETE, GET, not PUT" in wrong.json()["error"]["message"]
    assert (head.status_code, head.headers["content-type"]) == (200, "application/json")
    assert (long.status_code, len(long.content) < 1000) == (404, True)


def test_a_target_may_be_a_whole_url(doors: Doors) -> None:
    url = httpx.URL(doors.url(doors.engine("Hi", "</s>")))
    with socket.create_connection((url.host, url.port or 0), timeout=20) as connection:
        connection.sendall(b"GET http://localhost/livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_some_of_the_tools_may_be_allowed(doors: Doors, path: str) -> None:
    engine = doors.engine("Hi", "</s>")
    name = {"name": "get_weather"}
    allowed = [{"type": "function", **({"function": name} if path == CHAT[0] else name)}]
    choice: dict[str, Any] = {"mode": "required", "tools": allowed}
    choice = {"type": "allowed_tools", **({"allowed_tools": choice} if path == CHAT[0] else choice)}
    other = json.loads(json.dumps(TOOL[path]).replace("get_weather", "get_tide"))
    body = {**dict([CHAT, RESPONSES])[path], "tools": [TOOL[path], other], "tool_choice": choice}
    assert post(doors, engine, path, body).status_code == 200
    grammar = engine.requests[0].grammar
    assert grammar is not None
    assert "get_weather" in grammar.lark
    assert "get_tide" not in grammar.lark
    assert "get_tide" in doors.spelled(engine.requests[0].prompt_token_ids)


def test_two_thoughts_that_differ_are_both_told(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    said = {"role": "assistant", "content": "Rain.", "reasoning": "One.", "reasoning_content": "Two."}
    for turn in (said, said | {"reasoning": "Two."}):
        assert post(doors, engine, CHAT[0], {"messages": [*USER, turn, *USER]}).status_code == 200
    both, one = (doors.spelled(request.prompt_token_ids) for request in engine.requests)
    assert "[THINK]Two.[/THINK][THINK]One.[/THINK]Rain." in both
    assert "[/INST][THINK]Two.[/THINK]Rain." in one
