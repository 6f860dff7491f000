"""Requests that are made from our own OpenAPI document, right ones and wrong ones: none makes a server error."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import cache
from typing import Any

import httpx
import pytest

from sparkstral.api.app import create_app
from sparkstral.config import ServerConfig
from tests.api.test_every_protocol import RIGHT
from tests.support.fake_engine import FakeEngine
from tests.support.generated import each_body
from tests.support.tekken import v15_tokenizer

# Cases of each field and each of right and wrong; all together are 3,000 requests and more.
NUM_CASES = {
    "/v1/chat/completions": 9,
    "/v1/completions": 9,
    "/v1/responses": 9,
    "/v1/messages": 9,
    "/v1/messages/count_tokens": 6,
    "/tokenize": 6,
    "/detokenize": 30,
    "/render": 1,
}
sent: Counter[str] = Counter()


@cache
def app() -> Any:
    engine = FakeEngine(lambda request: [1033, 1034, 2], max_model_len=100_000)
    return create_app(engine, v15_tokenizer(), ServerConfig())


@pytest.mark.parametrize("path", RIGHT)
def test_no_generated_request_makes_a_server_error(path: str) -> None:
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app()), base_url="http://localhost")
    statuses: Counter[int] = Counter()

    async def send(body: Any) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await client.post(path, content=content)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, body
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]

    with asyncio.Runner() as runner:
        sent[path] = each_body(app().openapi(), path, RIGHT[path], NUM_CASES[path], lambda body: runner.run(send(body)))
        runner.run(client.aclose())
    assert statuses.total() == sent[path]
    assert min(statuses[200], statuses[400]) > sent[path] / 12, statuses  # neither all right nor all wrong


def test_there_were_3000_of_them() -> None:
    if set(sent) == set(RIGHT):  # else only some of the tests above were asked for
        assert sent.total() >= 3000, sent
