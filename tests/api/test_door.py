"""Who may ask: programs, pages of the server's own, and no page of another site; and how long a body may take."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress

import httpx
import pytest

from sparkstral.api import exchange
from sparkstral.api.door import is_loopback
from sparkstral.config import ServerConfig
from tests.api.conftest import Doors

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "Say hello."}]}).encode()
JSON = {"Content-Type": "application/json"}


def post(doors: Doors, headers: dict[str, str], host: str = "127.0.0.1") -> httpx.Response:
    async def ask() -> httpx.Response:
        async with doors.asgi(doors.engine("Hello!", "</s>"), ServerConfig(host=host)) as client:
            return await client.post(CHAT, content=BODY, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:3000", "http://127.0.0.1:8002", "null"])
def test_a_page_of_another_site_must_declare_json_which_makes_its_browser_ask_first(doors: Doors, origin: str) -> None:
    headers = {"Host": "localhost:8002", "Origin": origin}
    assert post(doors, headers).status_code == 415
    assert post(doors, {**headers, "Content-Type": "text/plain"}).status_code == 415
    declared = post(doors, {**headers, **JSON})
    assert declared.status_code == 200
    assert not any(name.startswith("access-control") for name in declared.headers)


def test_a_browser_that_asks_first_is_not_let_in(doors: Doors) -> None:
    async def ask() -> httpx.Response:
        async with doors.asgi(doors.engine("Hello!", "</s>")) as client:
            headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
            return await client.options(CHAT, headers=headers)

    answer = asyncio.run(ask())
    assert answer.status_code == 405
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_pages_of_its_own_and_programs_need_not_declare_anything(doors: Doors) -> None:
    own = {"Host": "localhost:8002", "Origin": "http://localhost:8002"}
    assert post(doors, own).status_code == 200
    assert post(doors, {"Host": "localhost:8002"}).status_code == 200


@pytest.mark.parametrize(
    "name",
    ["localhost", "localhost:8002", "LocalHost:1", "localhost.", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:8002"],
)
def test_on_a_loopback_address_it_answers_to_names_of_its_own_machine(doors: Doors, name: str) -> None:
    assert post(doors, {"Host": name, **JSON}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:8002", "localhost.evil.example", "10.0.0.7:8002", "[::2]:8002", "[", ":8002"]
)
def test_on_a_loopback_address_no_other_name_is_answered(doors: Doors, host: str, name: str) -> None:
    answer = post(doors, {"Host": name, **JSON}, host)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "forbidden_host"
    assert name in error["message"]
    assert "--host" in error["message"]


def test_a_loopback_address_of_ones_choice_is_a_name_too(doors: Doors) -> None:
    assert post(doors, {"Host": "127.0.0.9:8002", **JSON}, "127.0.0.9").status_code == 200
    assert post(doors, {"Host": "127.0.0.9:8002", **JSON}, "127.0.0.1").status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "spark.example"])
def test_whoever_lets_the_network_in_is_asked_under_any_name(doors: Doors, host: str) -> None:
    assert not is_loopback(host)
    assert post(doors, {"Host": "spark.example:8002", **JSON}, host).status_code == 200


def begin(url: str, body: bytes, content_length: int) -> socket.socket:
    """A connection on which a request has been sent up to the end of `body`."""
    parts = httpx.URL(url)
    connection = socket.create_connection((parts.host, parts.port), timeout=60)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {content_length}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read_all(connection: socket.socket) -> str:
    return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()


def test_a_body_that_stops_coming_is_not_waited_for(doors: Doors) -> None:
    url = doors.url(doors.engine("Hello!", "</s>"), ServerConfig(body_timeout_s=0.2))
    with begin(url, BODY[:10], len(BODY)) as connection:
        answer = read_all(connection)  # up to its end: the server closes the connection
    assert answer.startswith("HTTP/1.1 408 ")
    assert "10 B" in answer
    assert httpx.post(url + CHAT, content=BODY).status_code == 200


def test_a_body_that_comes_byte_by_byte_is_not_waited_for_either(doors: Doors) -> None:
    url = doors.url(doors.engine("Hello!", "</s>"), ServerConfig(body_timeout_s=0.3))
    with begin(url, b"{", 100_000) as connection:
        connection.settimeout(0.05)
        answer = b""
        while not answer:  # each byte comes well within the time that is given for one
            connection.sendall(b" ")
            with suppress(TimeoutError):
                answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_large_body_is_understood_beside_the_others(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    is_parsing, may_end = threading.Event(), threading.Event()
    parse = exchange.parse

    def slowly(body: bytes) -> object:
        if len(body) > exchange.INLINE_BYTES:
            is_parsing.set()
            assert may_end.wait(30)
        return parse(body)

    monkeypatch.setattr(exchange, "parse", slowly)

    async def talk() -> None:
        async with doors.asgi(doors.engine("Hello!", "</s>")) as client:
            large = asyncio.create_task(client.post(CHAT, content=BODY + b" " * exchange.INLINE_BYTES))
            while not is_parsing.is_set():
                await asyncio.sleep(0.001)
            assert (await client.post(CHAT, content=BODY)).status_code == 200
            may_end.set()
            assert (await large).status_code == 200

    asyncio.run(talk())


def test_a_body_that_is_being_read_counts_as_in_flight(doors: Doors) -> None:
    async def talk() -> None:
        is_reading, may_end = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncGenerator[bytes, None]:
            yield BODY[:10]
            is_reading.set()
            await may_end.wait()
            yield BODY[10:]

        async with doors.asgi(doors.engine("Hello!", "</s>"), ServerConfig(max_in_flight=1)) as client:
            slow = asyncio.create_task(client.post(CHAT, content=slowly()))
            await is_reading.wait()
            assert (await client.post(CHAT, content=BODY)).status_code == 429
            may_end.set()
            assert (await slow).status_code == 200
            assert (await client.post(CHAT, content=BODY)).status_code == 200

    asyncio.run(talk())
