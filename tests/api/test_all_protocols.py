"""What holds in every protocol alike, over a scripted engine."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from sparkstral.config import ServerConfig
from tests.api.conftest import Doors
from tests.support.fake_engine import FakeEngine

SCHEMA: Any = {"type": "object", "properties": {"town": {"type": "string"}}}
USER: Any = [{"role": "user", "content": "Rain in Bergen?"}]
CHAT = ("/v1/chat/completions", {"messages": USER})
RESPONSES = ("/v1/responses", {"input": USER})
MESSAGES = ("/v1/messages", {"messages": USER, "max_tokens": 4000})
EVERY = pytest.mark.parametrize(("path", "body"), [CHAT, RESPONSES, MESSAGES], ids=["chat", "responses", "messages"])
TOOL: dict[str, Any] = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    "/v1/responses": {"type": "function", "name": "get_weather", "parameters": SCHEMA},
    "/v1/messages": {"name": "get_weather", "input_schema": SCHEMA},
}


def post(
    doors: Doors, engine: FakeEngine, path: str, body: dict[str, Any], config: ServerConfig | None = None, **headers: str
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
    answer = post(doors, doors.engine("[TOOL_CALLS]", "zebra"), path, {**body, "tools": [TOOL[path]], "stream": stream})
    assert answer.status_code == 200
    assert "zebra" not in answer.text
    assert re.search('"(length|max_output_tokens|max_tokens)"', answer.text)
