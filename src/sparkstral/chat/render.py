"""A chat request → the prompt's token ids.

Owns the way through mistral-common, which encodes piece by piece: control tokens come from the structure
alone, so text never becomes one, whatever it spells. Must not know a protocol's wire form or the
context's length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct import messages as wire
from mistral_common.protocol.instruct import tool_calls as wire_tools
from mistral_common.protocol.instruct.chunk import ContentChunk, TextChunk, ThinkChunk
from mistral_common.protocol.instruct.request import ChatCompletionRequest, ReasoningEffort
from mistral_common.utils.json_utils import validate_json_schema_by_draft7

from sparkstral.chat.history import CALL_NAME, ends_in_open_thought, repair_history
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, ChatRequest, Part, Prompt, TextPart, Tool


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """`repairs` names what was changed in the message list (chat/history.py)."""

    prompt: Prompt
    repairs: tuple[str, ...]


def render(request: ChatRequest, tokenizer: ChatTokenizer) -> RenderedPrompt:
    """The prompt of `request`. Raises RequestError, naming the field, when it cannot be rendered."""
    _check_tools(request)
    history = repair_history(request.messages)
    _check_response_format(request, history.messages[-1])
    try:
        encoded = tokenizer.mistral.encode_chat_completion(
            ChatCompletionRequest(
                messages=[_message(message) for message in history.messages],
                tools=[_tool(tool) for tool in request.tools] or None,
                reasoning_effort=ReasoningEffort(request.reasoning_effort),
            )
        )
    except (MistralCommonException, ValueError, RecursionError) as error:
        raise RequestError(f"messages cannot be rendered: {error}", "messages") from error
    prompt = Prompt(tuple(encoded.tokens), prefilled_think=ends_in_open_thought(history.messages))
    return RenderedPrompt(prompt, history.repairs)


def _check_tools(request: ChatRequest) -> None:
    for i, tool in enumerate(request.tools):
        if not CALL_NAME.fullmatch(tool.name):
            raise RequestError(
                f"tools[{i}].function.name is {tool.name!r}; a name has 1 to 64 of the letters a-z and A-Z, "
                "digits, underscores and dashes.",
                f"tools[{i}].function.name",
            )
        _check_schema(tool.parameters, f"tools[{i}].function.parameters")
        if tool.parameters.get("type", "object") != "object":
            param = f"tools[{i}].function.parameters"
            raise RequestError(f'{param} must describe an object ("type": "object").', param)
    choice, names = request.tool_choice, [tool.name for tool in request.tools]
    if choice.mode in ("required", "named") and not names:
        raise RequestError("tool_choice asks for a call, but there are no tools; offer one.", "tool_choice")
    if choice.mode == "named" and choice.name not in names:
        raise RequestError(
            f"tool_choice names {choice.name!r}, which is not among the tools: {', '.join(names)}.",
            "tool_choice",
        )


def _check_schema(schema: Mapping[str, Any], param: str) -> None:
    try:
        validate_json_schema_by_draft7(dict(schema))
    except ValueError as error:
        raise RequestError(f"{param} is no JSON Schema: {error}", param) from error
    except RecursionError:
        raise RequestError(f"{param} is nested too deeply to be read.", param) from None


def _check_response_format(request: ChatRequest, last: ChatMessage) -> None:
    if request.response_format.schema is not None:
        _check_schema(request.response_format.schema, "response_format")
    if (
        last.prefix
        and request.response_format.mode != "text"
        and any(isinstance(p, TextPart) for p in last.parts)
    ):
        raise RequestError(
            "response_format asks for JSON, but the last message is an assistant's that is to be continued, "
            "and JSON can only be enforced from its beginning. End with a user message, or leave "
            "response_format out.",
            "response_format",
        )


def _tool(tool: Tool) -> wire_tools.Tool:
    function = wire_tools.Function(
        name=tool.name, description=tool.description, parameters=dict(tool.parameters), strict=tool.strict
    )
    return wire_tools.Tool(function=function)


def _message(message: ChatMessage) -> wire.ChatMessage:
    content = _content(message.parts)
    match message.role:
        case "system":
            return wire.SystemMessage(content=content)
        case "user":
            return wire.UserMessage(content=content)
        case "tool":
            return wire.ToolMessage(content=content, tool_call_id=message.tool_call_id)
        case "assistant":
            calls = [
                wire_tools.ToolCall(
                    id=call.id,
                    function=wire_tools.FunctionCall(name=call.name, arguments=_arguments(call.arguments)),
                )
                for call in message.tool_calls
            ]
            return wire.AssistantMessage(content=content, tool_calls=calls or None, prefix=message.prefix)


def _content(parts: Sequence[Part]) -> str | list[ContentChunk]:
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts)
    return [
        TextChunk(text=part.text)
        if isinstance(part, TextPart)
        else ThinkChunk(thinking=part.text, closed=part.closed)
        for part in parts
    ]


def _arguments(text: str) -> str:
    """JSON as it is, nothing as an empty object, and what is no JSON as the text that it is."""
    if not text.strip():
        return "{}"
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text)
    return text
