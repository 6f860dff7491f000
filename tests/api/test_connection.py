"""How long a connection may keep the server waiting for a request's head, on real sockets."""

from __future__ import annotations

import socket

import httpx
import pytest

from sparkstral.api.app import create_app
from sparkstral.api.connection import PatientConnection
from sparkstral.config import ServerConfig
from tests.api.conftest import Doors
from tests.support.server import served


class HastyConnection(PatientConnection):
    head_timeout_s = 0.2


HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("sent", "is_first"), [(b"", True), (HALF, True), (HALF, False)], ids=["nothing", "half a head", "a later head"]
)
def test_a_head_that_does_not_end_closes_the_connection(doors: Doors, sent: bytes, is_first: bool) -> None:
    app = create_app(doors.engine("Hi", "</s>"), doors.tokenizer, ServerConfig())
    with served(app, HastyConnection) as url, socket.create_connection(address(url), timeout=20) as connection:
        if not is_first:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        connection.sendall(sent)
        while connection.recv(4096):  # ends with the connection, or the test fails
            pass


def test_an_answer_may_take_longer_than_a_head(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.hang_after = 1
    app = create_app(engine, doors.tokenizer, ServerConfig(request_timeout_s=0.6))
    with served(app, HastyConnection) as url:
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)
    assert "not complete after 0.6 s" in answer.text


def address(url: str) -> tuple[str, int]:
    parsed = httpx.URL(url)
    return parsed.host, parsed.port or 0
