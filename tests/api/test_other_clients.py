"""Programs that people use, as they are installed from PyPI, against the server: over a scripted engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkstral.cli.clients import CLIENTS
from tests.api.conftest import MODEL, Doors

CALLS = [
    "I look. ",
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Bergen"}',
    "[TOOL_CALLS]", "get_weather", "[ARGS]", '{"town": "Tromsø"}',
    "</s>",
]  # fmt: skip
TOWNS = [{"town": "Bergen"}, {"town": "Tromsø"}]
SCHEMA: Any = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}


@pytest.fixture
def url(doors: Doors) -> str:
    return doors.url(doors.engine(*CALLS))


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
def test_litellm(url: str, monkeypatch: pytest.MonkeyPatch, provider: str, stream: bool) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the internet for prices
    import litellm

    base = f"{url}/v1" if provider == "openai" else url
    answer: Any = litellm.completion(
        model=f"{provider}/{MODEL}", api_base=base, api_key="none", stream=stream, max_tokens=200, tools=[TOOL],
        messages=[{"role": "user", "content": "Weather?"}],
    )  # fmt: skip
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    message = answer.choices[0].message
    assert message.content == "I look. "
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == TOWNS
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("provider", ["openai", "openai responses", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
def test_langchain(url: str, provider: str, stream: bool) -> None:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model: Any
    if provider == "anthropic":
        model = ChatAnthropic(model=MODEL, base_url=url, api_key="none", max_tokens=200)
    else:
        model = ChatOpenAI(
            model=MODEL, base_url=f"{url}/v1", api_key="none", use_responses_api=provider != "openai", store=False
        )
    with_tools = model.bind_tools([TOOL])
    question = HumanMessage("Weather?")
    if stream:
        first, *chunks = with_tools.stream([question])
        for chunk in chunks:
            first += chunk
    else:
        first = with_tools.invoke([question])
    assert [call["args"] for call in first.tool_calls] == TOWNS
    results = [ToolMessage("rain", tool_call_id=call["id"]) for call in first.tool_calls]
    second = with_tools.invoke([question, first, *results])
    assert len(second.tool_calls) == 2
    assert second.usage_metadata["input_tokens"] > 0


def test_llm(doors: Doors, tmp_path: Path) -> None:
    url = doors.url(doors.engine("Hello, Åse!", "</s>"))
    settings = CLIENTS["llm"].filled(url, MODEL, 4096, "none")
    (tmp_path / "extra-openai-models.yaml").write_text(settings, encoding="utf-8")
    (tmp_path / "keys.json").write_text(json.dumps({"sparkstral": "none"}), encoding="utf-8")
    for flags in ([], ["--no-stream"]):
        ended = subprocess.run(
            [sys.executable, "-m", "llm", "-m", "sparkstral", *flags, "Say hello."],
            env={**os.environ, "LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.strip() == "Hello, Åse!"
