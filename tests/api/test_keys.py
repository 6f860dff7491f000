"""Keys, other sites' pages that are let in, and how long an answer may take."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from sparkstral.cli.options import check_origins, read_api_keys
from sparkstral.config import ServerConfig
from sparkstral.errors import ConfigError
from tests.api.conftest import MODEL, Doors
from tests.support.messages import says

CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Say hello."}]
BODY = {"messages": HELLO}
KEYED = ServerConfig(api_keys=("first-key", "second-key"))
PAGE = "https://chat.example"


def talk(doors: Doors, config: ServerConfig, *requests: dict[str, Any]) -> list[httpx.Response]:
    async def send() -> list[httpx.Response]:
        async with doors.asgi(doors.engine("Hi", "</s>"), config) as client:
            return [await client.request(**{"method": "POST", "url": CHAT, **request}) for request in requests]

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer first"}, 401),
        ({"Authorization": "Bearer first-key2"}, 401),
        ({"Authorization": "Basic first-key"}, 401),
        ({"x-api-key": "\u00e9"}, 401),
        ({"Authorization": "Bearer first-key"}, 200),
        ({"Authorization": "bearer  second-key "}, 200),
        ({"x-api-key": "second-key"}, 200),
        ({"x-api-key": "second-key", "Authorization": "Bearer none"}, 200),
        ({"x-api-key": "none", "Authorization": "Bearer first-key"}, 200),
        ({"x-api-key": "none", "Authorization": "Bearer none"}, 401),
    ],
    ids=str,
)
def test_a_server_with_keys_wants_one(doors: Doors, headers: dict[str, str], status: int) -> None:
    encoded = {name: value.encode("utf-8") for name, value in headers.items()}
    (answer,) = talk(doors, KEYED, {"json": BODY, "headers": encoded})
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert "first-key" not in answer.text.replace(headers.get("Authorization", ""), "")


def test_every_path_but_health_wants_a_key(doors: Doors) -> None:
    paths = ["/health", "/livez", "/readyz", "/v1/models", "/openapi.json", "/tokenize", "/v1/nothing"]
    answers = talk(doors, KEYED, *({"method": "GET", "url": path} for path in paths))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 401, 401, 401, 401]


def test_the_official_clients_send_the_key_and_know_the_refusal(doors: Doors) -> None:
    url = doors.url(doors.engine("Hi", "</s>"), KEYED)
    body: Any = {"model": MODEL, "messages": HELLO}
    openai.OpenAI(base_url=f"{url}/v1", api_key="first-key").chat.completions.create(**body)
    anthropic.Anthropic(base_url=url, api_key="second-key").messages.create(max_tokens=5, **body)
    anthropic.Anthropic(base_url=url, auth_token="second-key", api_key=None).messages.create(max_tokens=5, **body)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="none").chat.completions.create(**body)
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=url, api_key="none").messages.create(max_tokens=5, **body)


def test_pages_that_are_let_in_get_cors_and_others_do_not(doors: Doors) -> None:
    config = ServerConfig(cors_origins=(PAGE,), api_keys=("key",))
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    mine, other, refused, answered = talk(
        doors,
        config,
        {"method": "OPTIONS", "headers": {"Origin": PAGE, **asked}},
        {"method": "OPTIONS", "headers": {"Origin": "https://evil.example", **asked}},
        {"json": BODY, "headers": {"Origin": PAGE}},
        {
            "content": '{"messages": [{"role": "user", "content": "x"}]}',
            "headers": {"Origin": PAGE, "x-api-key": "key"},
        },
    )
    assert (mine.status_code, mine.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "authorization" in mine.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in other.headers
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
    assert (answered.status_code, answered.headers["access-control-allow-origin"]) == (200, PAGE)


def test_there_is_no_cors_unless_it_is_asked_for(doors: Doors) -> None:
    (answer,) = talk(doors, ServerConfig(), {"json": BODY, "headers": {"Origin": PAGE}})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hang_after", [0, 2])
def test_an_answer_that_takes_too_long_is_ended(doors: Doors, stream: bool, hang_after: int) -> None:
    engine = doors.engine("one two three four", "</s>")
    engine.hang_after = hang_after
    url = doors.url(engine, ServerConfig(request_timeout_s=0.2))
    answer = httpx.post(url + CHAT, json={**BODY, "stream": stream})
    assert answer.status_code == (200 if stream and hang_after else 504)
    assert "0.2 s" in answer.text
    assert "timeout" in answer.text
    assert engine.has_aborted.wait(30)


@pytest.mark.parametrize(
    ("headers", "field", "priority", "wrong"),
    [
        ({"x-sparkstral-priority": "-3", "x-sparkstral-timeout-s": "2.5"}, {}, -3, None),
        ({"x-sparkstral-priority": "7"}, {"priority": 2}, 2, None),
        ({"x-sparkstral-priority": "101"}, {}, 0, "x-sparkstral-priority"),
        ({"x-sparkstral-priority": "high"}, {}, 0, "x-sparkstral-priority"),
        ({"x-sparkstral-timeout-s": "nan"}, {}, 0, "x-sparkstral-timeout-s"),
        ({"x-sparkstral-timeout-s": "0"}, {}, 0, "x-sparkstral-timeout-s"),
        ({"x-sparkstral-timeout-s": "1_0"}, {}, 0, "x-sparkstral-timeout-s"),
        ({"x-sparkstral-timeout-s": "inf"}, {}, 0, "x-sparkstral-timeout-s"),
        ({"x-sparkstral-priority": "1_0"}, {}, 0, "x-sparkstral-priority"),
        ({}, {"priority": -101}, 0, "priority"),
    ],
)
def test_a_request_may_say_how_urgent_it_is(
    doors: Doors, headers: dict[str, str], field: dict[str, int], priority: int, wrong: str | None
) -> None:
    engine = doors.engine("one", "</s>")
    answer = httpx.post(doors.url(engine, ServerConfig()) + CHAT, json={**BODY, **field}, headers=headers)
    if wrong is None:
        assert [request.priority for request in engine.requests] == [priority]
    else:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, wrong)


def test_keys_from_flags_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\n one \n\ntwo\n")
    assert read_api_keys(["zero"], file) == ("zero", "one", "two")
    assert read_api_keys(None, None) == ()
    file.write_text("# none\n")
    with pytest.raises(ConfigError, match=says(file, "no key")):
        read_api_keys(None, file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_api_keys(None, tmp_path / "absent")
    for key in ("", "a b", "é"):
        with pytest.raises(ConfigError, match="ASCII"):
            read_api_keys([key], None)


def test_origins_are_checked() -> None:
    assert check_origins(["*", "http://localhost:3000"]) == ("*", "http://localhost:3000")
    for origin in ("localhost:3000", "http://x/", ""):
        with pytest.raises(ConfigError, match="--cors-origin"):
            check_origins([origin])
