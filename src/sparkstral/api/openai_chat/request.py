"""What a chat completions body means: wire object → ChatRequest.

Owns the checks that need more than one field, and the mapping of the client's spellings. Repairs of message
lists are chat's (history.py); here a message is only translated. Must not know tokens or status codes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sparkstral.api.efforts import EFFORTS
from sparkstral.api.images import image_from_url
from sparkstral.api.openai_chat.schema import (
    AllowedToolsChoice,
    AssistantMessage,
    ChatCompletionRequest,
    ContentPart,
    FunctionTool,
    ImagePart,
    MediaPart,
    Message,
    NamedToolChoice,
    RefusalPart,
    ResponseFormatField,
    SchemaFormat,
    ThinkingPart,
    ToolMessage,
)
from sparkstral.api.openai_sampling import sampling_choice
from sparkstral.errors import RequestError
from sparkstral.types import (
    ChatMessage,
    ChatRequest,
    Part,
    ResponseFormat,
    SamplingChoice,
    TextPart,
    ThinkPart,
    Tool,
    ToolCall,
    ToolChoice,
)


def to_chat_request(wire: ChatCompletionRequest) -> ChatRequest:
    """Raises RequestError naming the field for what is well formed and yet cannot be meant."""
    return ChatRequest(
        messages=to_messages(wire.messages),
        tools=to_tools(wire.tools),
        tool_choice=_tool_choice(wire),
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        reasoning_effort=EFFORTS[wire.reasoning_effort or "none"],
        response_format=_response_format(wire.response_format),
        sampling=_sampling(wire),
    )


def to_messages(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """Raises RequestError naming the message that cannot be meant."""
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages))


def _message(message: Message, place: str) -> ChatMessage:
    parts = _parts(message.content, f"{place}.content", is_assistant=isinstance(message, AssistantMessage))
    match message:
        case AssistantMessage():
            thoughts = dict.fromkeys(filter(None, (message.reasoning_content, message.reasoning)))  # mostly the same
            if not any(isinstance(part, ThinkPart) for part in parts):
                parts = (*map(ThinkPart, thoughts), *parts)
            return ChatMessage(
                "assistant", parts, _calls(message, place), prefix=bool(message.prefix), place=place
            )
        case ToolMessage():
            return ChatMessage("tool", parts, tool_call_id=message.tool_call_id, name=message.name, place=place)
        case _:
            return ChatMessage("user" if message.role == "user" else "system", parts, place=place)


def _calls(message: AssistantMessage, place: str) -> tuple[ToolCall, ...]:
    calls = [
        ToolCall(
            call.id or "", call.function.name, _arguments(call.function.arguments), f"{place}.tool_calls[{i}].function"
        )
        for i, call in enumerate(message.tool_calls or ())
    ]
    if message.function_call is not None and not calls:  # the old name of a single call, which has no id
        called = message.function_call
        calls = [ToolCall("", called.name, _arguments(called.arguments), f"{place}.function_call")]
    return tuple(calls)


def _arguments(arguments: str | dict[str, object] | None) -> str:
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    return arguments or ""


def _parts(content: str | list[ContentPart] | None, place: str, *, is_assistant: bool) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple(_part(part, f"{place}[{i}]", is_assistant) for i, part in enumerate(content or ()))


def _part(part: ContentPart, place: str, is_assistant: bool) -> Part:
    match part:
        case MediaPart():
            raise RequestError(
                f"`{place}` is a part of type {part.type}; this server reads text and images. Leave it out.", place
            )
        case ImagePart(image_url=image):
            return image_from_url(image if isinstance(image, str) else image.url, place)
        case ThinkingPart() | RefusalPart() if not is_assistant:
            raise RequestError(
                f"`{place}` is a part of type {part.type}, which only an assistant may have.", place
            )
        case ThinkingPart():
            text = part.thinking if isinstance(part.thinking, str) else "".join(t.text for t in part.thinking)
            return ThinkPart(text, closed=part.closed is not False)
        case RefusalPart():
            return TextPart(part.refusal)
        case _:
            return TextPart(part.text)


def to_tools(tools: Sequence[FunctionTool] | None) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            name=tool.function.name,
            description=tool.function.description or "",
            parameters=tool.function.parameters or {},
            strict=bool(tool.function.strict),
            name_place=f"tools[{i}].function.name",
            parameters_place=f"tools[{i}].function.parameters",
        )
        for i, tool in enumerate(tools or ())
    )


def _tool_choice(wire: ChatCompletionRequest) -> ToolChoice:
    """Whether the choice can be met by the tools offered is chat's to say."""
    match wire.tool_choice:
        case None:
            return ToolChoice()
        case NamedToolChoice(function=function):
            return ToolChoice("named", function.name)
        case AllowedToolsChoice(allowed_tools=allowed):
            return ToolChoice(allowed.mode, allowed=tuple(tool.function.name for tool in allowed.tools))
        case "any":  # Mistral's word for required
            return ToolChoice("required")
        case mode:
            return ToolChoice(mode)


def _response_format(field: ResponseFormatField | None) -> ResponseFormat:
    if field is None:
        return ResponseFormat()
    if isinstance(field, SchemaFormat):
        return ResponseFormat("json_schema", field.json_schema.schema_, strict=field.json_schema.strict is True)
    return ResponseFormat(field.type)


def _sampling(wire: ChatCompletionRequest) -> SamplingChoice:
    limits = {n for n in (wire.max_tokens, wire.max_completion_tokens) if n is not None}
    if len(limits) > 1:
        raise RequestError(
            f"`max_completion_tokens` is {wire.max_completion_tokens:,} and its old name `max_tokens` is "
            f"{wire.max_tokens:,}; send one of them.",
            "max_tokens",
        )
    if wire.top_logprobs is not None and not wire.logprobs:
        raise RequestError("`top_logprobs` needs `logprobs`: true.", "top_logprobs")
    return sampling_choice(
        wire,
        max_tokens=limits.pop() if limits else None,
        num_logprobs=(wire.top_logprobs or 0) if wire.logprobs else None,
    )
