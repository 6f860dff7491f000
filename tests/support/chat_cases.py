"""The cases of tests/data/cases as this program's own types.

The chat-completions form is read here in its simplest way; reading it for real is the API's work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.types import (
    ChatMessage,
    ChatRequest,
    Part,
    ResponseFormat,
    TextPart,
    ThinkPart,
    Tool,
    ToolCall,
    ToolChoice,
)

CASES = Path(__file__).parents[1] / "data" / "cases"
MARKERS = {"</s>": 2, "[TOOL_CALLS]": 9, "[ARGS]": 32, "[THINK]": 34, "[/THINK]": 35}


def load_cases(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
    return cases


def chat_request(body: dict[str, Any]) -> ChatRequest:
    """A chat-completions body with text and reasoning alone."""
    return ChatRequest(
        messages=tuple(_message(message) for message in body["messages"]),
        tools=tuple(tool(item) for item in body.get("tools", ())),
        reasoning_effort=body.get("reasoning_effort", "none"),
    )


_ROLES: dict[str, Any] = {"developer": "system", "function": "tool"}


def _message(message: dict[str, Any]) -> ChatMessage:
    parts: list[Part] = []
    if reasoning := message.get("reasoning_content"):
        parts.append(ThinkPart(reasoning))
    content = message.get("content") or ()
    for item in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if item["type"] == "thinking":
            parts.append(ThinkPart("".join(part["text"] for part in item["thinking"])))
        else:
            parts.append(TextPart(item["text"]))
    return ChatMessage(
        _ROLES.get(message["role"], message["role"]),
        tuple(parts),
        tuple(
            ToolCall(call["id"], call["function"]["name"], _arguments(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        ),
        tool_call_id=message.get("tool_call_id"),
    )


def _arguments(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def tool(item: dict[str, Any]) -> Tool:
    function = item["function"]
    return Tool(
        function["name"],
        function.get("description", ""),
        function.get("parameters", {}),
        function.get("strict", False),
    )


def tool_choice(choice: str | dict[str, Any]) -> ToolChoice:
    if isinstance(choice, str):
        return ToolChoice(choice)  # type: ignore[arg-type]
    return ToolChoice("named", choice["function"]["name"])


def response_format(mode: str, schema: dict[str, Any]) -> ResponseFormat:
    return ResponseFormat(mode, schema if mode == "json_schema" else None)  # type: ignore[arg-type]


def spell(token_ids: Iterable[int], tokenizer: ChatTokenizer) -> str:
    """The text of ids, control tokens spelled."""
    pieces = (tokenizer.token_bytes(i) or tokenizer.piece(i).encode() for i in token_ids)
    return b"".join(pieces).decode()


def output_ids(output: Iterable[str], tokenizer: ChatTokenizer) -> list[int]:
    """The ids of emitted pieces: a piece that equals a marker is that control token."""
    return [
        i for piece in output for i in ([MARKERS[piece]] if piece in MARKERS else tokenizer.encode(piece))
    ]
