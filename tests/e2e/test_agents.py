"""An agent that reads files, with each official SDK, against the demo: three turns of the model, two of them calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from sparkstral.config import SERVED_MODEL_NAME

TOOLS = {
    "list_files": ("List the files of a folder", "folder", "The folder"),
    "read_file": ("Read a file", "path", "Path of the file"),
}
QUESTION = "What is the port in the server file in data?"
BOTH = pytest.mark.parametrize("stream", [False, True])


def schema(argument: str, description: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": description}}
    return {"type": "object", "properties": properties, "required": [argument]}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "server.txt").write_text("host: north\nport: 4417")
    (tmp_path / "data" / "notes.md").write_text("Buy bread.")
    return tmp_path


def use(name: str, arguments: dict[str, str], files: Path) -> str:
    """What the tool says; the model's paths are under `files`."""
    (place,) = arguments.values()
    if name == "list_files":
        return json.dumps(sorted(path.name for path in (files / place).iterdir()))
    return (files / place).read_text()


CITIES = "What is the weather in Oslo and in Lima?"
WEATHER = ("get_weather", "Weather in a city", schema("city", "The city"))


@BOTH
def test_two_calls_at_once_with_openais_sdk(demo_url: str, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{demo_url}/v1", api_key="none", max_retries=0)
    name, text, parameters = WEATHER
    body: Any = {
        "model": SERVED_MODEL_NAME,
        "temperature": 0,
        "tools": [{"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}],
        "messages": [{"role": "user", "content": CITIES}],
    }
    if stream:
        with client.chat.completions.stream(**body) as events:
            choice: Any = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**body).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [
        {"city": "Oslo"}, {"city": "Lima"},
    ]  # fmt: skip


@BOTH
def test_two_calls_at_once_with_anthropics_sdk(demo_url: str, stream: bool) -> None:
    client = anthropic.Anthropic(base_url=demo_url, api_key="none", max_retries=0)
    name, text, parameters = WEATHER
    body: Any = {
        "model": SERVED_MODEL_NAME,
        "max_tokens": 200,
        "tools": [{"name": name, "description": text, "input_schema": parameters}],
        "messages": [{"role": "user", "content": CITIES}],
        "extra_body": {"temperature": 0},
    }
    if stream:
        with client.messages.stream(**body) as events:
            message: Any = events.get_final_message()
    else:
        message = client.messages.create(**body)
    assert message.stop_reason == "tool_use"
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [call.input for call in calls] == [{"city": "Oslo"}, {"city": "Lima"}]


@BOTH
def test_with_anthropics_sdk(demo_url: str, files: Path, stream: bool) -> None:
    client = anthropic.Anthropic(base_url=demo_url, api_key="none", max_retries=0)
    tools: Any = [
        {"name": name, "description": text, "input_schema": schema(*argument)}
        for name, (text, *argument) in TOOLS.items()
    ]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    used = []
    for _ in range(3):
        body: Any = {"model": SERVED_MODEL_NAME, "max_tokens": 200, "tools": tools}
        body["extra_body"] = {"temperature": 0}
        if stream:
            with client.messages.stream(messages=messages, **body) as events:
                message: Any = events.get_final_message()
        else:
            message = client.messages.create(messages=messages, **body)
        messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
        if message.stop_reason != "tool_use":
            break
        calls = [block for block in message.content if block.type == "tool_use"]
        used += [call.name for call in calls]
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": use(call.name, call.input, files)}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    assert used == ["list_files", "read_file"]
    assert message.stop_reason == "end_turn"
    assert "4417" in message.content[0].text
    assert message.usage.cache_read_input_tokens > 0


@BOTH
def test_with_openais_sdk_and_responses(demo_url: str, files: Path, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{demo_url}/v1", api_key="none", max_retries=0)
    tools: Any = [
        {"type": "function", "name": name, "description": text, "parameters": schema(*argument), "strict": False}
        for name, (text, *argument) in TOOLS.items()
    ]
    body: Any = {"model": SERVED_MODEL_NAME, "temperature": 0, "tools": tools}
    sent: Any = QUESTION
    previous, used = None, []
    for _ in range(3):
        if stream:
            with client.responses.stream(**body, input=sent, previous_response_id=previous) as events:
                list(events)
                response: Any = events.get_final_response()
        else:
            response = client.responses.create(**body, input=sent, previous_response_id=previous)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        used += [call.name for call in calls]
        results = [use(call.name, json.loads(call.arguments), files) for call in calls]
        sent = [
            {"type": "function_call_output", "call_id": call.call_id, "output": result}
            for call, result in zip(calls, results, strict=True)
        ]
        previous = response.id
    assert used == ["list_files", "read_file"]
    assert "4417" in response.output_text


@BOTH
def test_with_openais_sdk(demo_url: str, files: Path, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{demo_url}/v1", api_key="none", max_retries=0)
    tools: Any = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": schema(*argument)}}
        for name, (text, *argument) in TOOLS.items()
    ]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    used = []
    for _ in range(3):
        body: Any = {"model": SERVED_MODEL_NAME, "temperature": 0, "tools": tools, "messages": messages}
        if stream:
            with client.chat.completions.stream(**body) as events:
                message: Any = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**body).choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            used.append(call.function.name)
            result = use(call.function.name, json.loads(call.function.arguments), files)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert used == ["list_files", "read_file"]
    assert "4417" in message.content
