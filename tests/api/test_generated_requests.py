"""Requests that are made from our own OpenAPI document, right ones and wrong ones: none makes a server error.

Schemathesis makes bodies from the schemas. Most are wrong in their first field, so each is also sent in changed forms:
single fields of it in a body that is right, a value swapped for another kind, a key left out.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from sparkstral.api.app import create_app
from sparkstral.config import ServerConfig
from tests.support.fake_engine import FakeEngine
from tests.support.tekken import v15_tokenizer

MESSAGES = [{"role": "user", "content": "Say hello."}]
PROMPT = {"prompt": "Once upon"}
RIGHT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": PROMPT,
    "/v1/responses": {"input": "Say hello."},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/tokenize": PROMPT,
    "/detokenize": {"tokens": [1065]},
    "/render": {"messages": MESSAGES},
}
JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    10**30,
    0.5,
    "",
    "x",
    "[INST]",
    "\u2028",
    [],
    {},
    [None],
    {"type": "text"},
    [[[]]],
]
NUM_CASES = 64  # of each endpoint; with their changed forms about 3,000 requests
NUM_CHANGED = 5


@cache
def app() -> Any:
    return create_app(FakeEngine(lambda request: [1033, 1034, 2]), v15_tokenizer(), ServerConfig())


def changed(body: Any, right: dict[str, Any], rng: random.Random) -> Iterator[Any]:
    """Other bodies like this one."""
    known = list(body) if isinstance(body, dict) else []
    for _ in range(NUM_CHANGED):
        number = rng.randint(1, 3)
        sampled = {key: body[key] for key in rng.sample(known, min(number, len(known)))}
        other = copy.deepcopy({**right, **sampled})
        places = [(other, key) for key in other]
        for container, key in places:  # grows while it is walked
            value = container[key]
            inner = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
            places += [(value, inner_key) for inner_key in inner]
        container, key = rng.choice(places)
        if rng.random() < 0.3:
            del container[key]
        elif rng.random() < 0.5:
            container[key] = copy.deepcopy(rng.choice(JUNK))
        yield other


@pytest.mark.parametrize("path", RIGHT)
def test_no_generated_request_makes_a_server_error(path: str) -> None:
    operation = schemathesis.openapi.from_dict(app().openapi())[path]["POST"]
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app()), base_url="http://localhost")
    statuses: Counter[int] = Counter()
    rng = random.Random(path)

    async def send(body: Any) -> None:
        answer = await client.post(path, content=json.dumps(body))
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, body
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]

    with asyncio.Runner() as runner:

        @settings(
            max_examples=NUM_CASES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def run(case: schemathesis.Case) -> None:
            body = case.body if isinstance(case.body, dict | list | str | int | float | None) else None
            for other in (body, *changed(body, RIGHT[path], rng)):
                runner.run(send(other))

        run()
        runner.run(send(RIGHT[path]))
        runner.run(client.aclose())
    assert statuses.total() >= NUM_CASES * NUM_CHANGED
    assert statuses[200] > 10
    assert statuses[400] > 10
