"""Programs that people use, as they are installed from PyPI, against the server: over a scripted engine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from sparkstral.cli.clients import CLIENTS
from sparkstral.types import GenerationRequest
from tests.api.conftest import MODEL, Doors
from tests.support.fake_engine import FakeEngine, written
from tests.support.tekken import v15_tokenizer

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

    how: dict[str, Any] = {"model": f"anthropic/{MODEL}", "api_base": url, "api_key": "none"}
    if provider == "openai":  # as `sparkstral connect litellm` has it
        (entry,) = yaml.safe_load(CLIENTS["litellm"].filled(url, MODEL, 4096, "none"))["model_list"]
        how = entry["litellm_params"]
    question = {"role": "user", "content": "Weather?"}
    answer: Any = litellm.completion(**how, stream=stream, max_tokens=200, tools=[TOOL], messages=[question])
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    message = answer.choices[0].message
    assert message.content == "I look. "
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == TOWNS
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("provider", ["openai", "openai responses", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
def test_langchain(doors: Doors, provider: str, stream: bool) -> None:
    url = doors.url(engine := doors.engine(*CALLS))
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model: Any
    if provider == "openai":  # as `sparkstral connect langchain` has it
        told: dict[str, Any] = {}
        exec(CLIENTS["langchain"].filled(url, MODEL, 4096, "none"), told)
        model = told["model"]
    elif provider == "anthropic":
        model = ChatAnthropic(model=MODEL, base_url=url, api_key="none", max_tokens=200)
    else:
        model = ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", use_responses_api=True, store=False)
    with_tools = model.bind_tools([TOOL])
    question = HumanMessage("Weather?")
    if stream:
        first, *chunks = with_tools.stream([question])
        for chunk in chunks:
            first += chunk
    else:
        first = with_tools.invoke([question])
    assert [call["args"] for call in first.tool_calls] == TOWNS
    results = [
        ToolMessage(f"rain in {call['args']['town']}", tool_call_id=call["id"]) for call in first.tool_calls
    ]
    second = with_tools.invoke([question, first, *results])
    assert len(second.tool_calls) == 2
    prompt = doors.spelled(engine.requests[-1].prompt_token_ids)
    assert prompt.endswith(
        "I look."
        '[TOOL_CALLS]get_weather[ARGS]{"town": "Bergen"}[TOOL_CALLS]get_weather[ARGS]{"town": "Tromsø"}</s>'
        "[TOOL_RESULTS]rain in Bergen[/TOOL_RESULTS][TOOL_RESULTS]rain in Tromsø[/TOOL_RESULTS]"
    )
    assert second.usage_metadata["input_tokens"] > 0


def test_the_tools_of_an_mcp_server(doors: Doors) -> None:
    """An agent's loop: tools listed by a server of the Model Context Protocol, called there, results sent back."""
    from mcp.server.fastmcp import FastMCP
    from mcp.shared.memory import create_connected_server_and_client_session

    server = FastMCP("weather")

    @server.tool(description="Weather of a town")
    def get_weather(town: str) -> str:
        return f"rain in {town}"

    def script(request: GenerationRequest) -> list[int]:
        has_results = 7 in request.prompt_token_ids  # [TOOL_RESULTS]
        return written(v15_tokenizer(), *(["It rains in both.", "</s>"] if has_results else CALLS))

    engine = FakeEngine(script)
    url = doors.url(engine)

    async def main() -> str:
        async with (
            create_connected_server_and_client_session(server._mcp_server) as session,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            tools: Any = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.inputSchema},
                }
                for tool in (await session.list_tools()).tools
            ]
            messages: list[Any] = [{"role": "user", "content": "Weather?"}]
            while True:
                answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
                message = answer.choices[0].message
                if not message.tool_calls:
                    return message.content or ""
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls:
                    function: Any = call.function  # type: ignore[union-attr]
                    result: Any = await session.call_tool(function.name, json.loads(function.arguments))
                    text = "".join(part.text for part in result.content)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

    assert asyncio.run(main()) == "It rains in both."
    prompt = doors.spelled(engine.requests[-1].prompt_token_ids)
    assert "Weather of a town" in prompt
    assert "[TOOL_RESULTS]rain in Bergen[/TOOL_RESULTS][TOOL_RESULTS]rain in Tromsø[/TOOL_RESULTS]" in prompt


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
