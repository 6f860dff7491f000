"""Whatever is posted, the answer is never a server error, and errors have the protocol's form."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkstral.api.app import create_app
from sparkstral.api.openai_chat.schema import ChatCompletionRequest
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import ServerConfig
from tests.support.fake_engine import FakeEngine

texts = st.text(max_size=8) | st.sampled_from(["auto", "get_weather", "[INST]", "[/THINK]", "{}", "\u2028"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nine times of ten what belongs there, so that the error is not always in the first field."""
    return st.integers(0, 9).flatmap(lambda number: good if number else anything)


parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "text", "thinking", "refusal", "image_url", "smell"])},
    optional={"text": mostly(texts), "thinking": mostly(texts), "refusal": texts, "closed": st.booleans()},
)
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": texts}, optional={"arguments": mostly(texts)})},
    optional={"id": mostly(texts), "type": st.just("function")},
)
messages = st.fixed_dictionaries(
    {
        "role": mostly(
            st.sampled_from(["system", "developer", "user", "user", "assistant", "tool", "function"])
        ),
        "content": mostly(texts | st.lists(parts, max_size=3)),
    },
    optional={
        "tool_calls": mostly(st.lists(calls, max_size=2)),
        "tool_call_id": mostly(texts),
        "reasoning_content": mostly(texts),
        "prefix": st.booleans(),
    },
)
schemas = st.dictionaries(
    st.sampled_from(["type", "properties", "enum", "required", "minimum", "$ref", "x"]), anything, max_size=3
)
functions = st.fixed_dictionaries(
    {"name": mostly(st.sampled_from(["get_weather", "get_time", "a b", ""]))},
    optional={"description": mostly(texts), "parameters": mostly(schemas), "strict": st.booleans()},
)
tools = st.fixed_dictionaries({"type": mostly(st.just("function")), "function": mostly(functions)})
formats = st.fixed_dictionaries(
    {"type": st.just("json_schema"), "json_schema": st.fixed_dictionaries({"schema": schemas})}
)
bodies = st.builds(
    lambda extra, known: {**extra, **known},
    st.dictionaries(
        st.sampled_from(sorted(ChatCompletionRequest.model_fields)) | texts, anything, max_size=1
    ),
    st.fixed_dictionaries(
        {"messages": mostly(st.lists(messages, min_size=1, max_size=4))},
        optional={
            "tools": mostly(st.lists(tools, max_size=2)),
            "tool_choice": mostly(st.sampled_from(["auto", "none", "required", "any"])),
            "response_format": mostly(formats),
            "reasoning_effort": mostly(st.sampled_from(["none", "low", "high"])),
            "stream": st.booleans(),
        },
    ),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=mostly(bodies))
def test_no_body_makes_a_server_error(tokenizer: ChatTokenizer, body: Any) -> None:
    app = create_app(FakeEngine(lambda request: [2]), tokenizer, ServerConfig())

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.post("/v1/chat/completions", content=json.dumps(body))

    answer = asyncio.run(post())
    assert answer.status_code < 500
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
