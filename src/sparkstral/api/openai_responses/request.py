"""What a responses body means: wire object → ChatRequest.

Owns the translation of items into turns. Repairs of message lists are chat's (history.py). Must not know tokens or
status codes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from sparkstral.api.efforts import EFFORTS
from sparkstral.api.openai_responses.schema import (
    LOGPROBS,
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionTool,
    Item,
    MediaPart,
    MessageItem,
    NamedToolChoice,
    ReasoningItem,
    RefusalPart,
    ResponsesRequest,
    SchemaFormat,
)
from sparkstral.api.openai_responses.schema import Part as WirePart
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


def to_chat_request(wire: ResponsesRequest, history: Sequence[ChatMessage]) -> ChatRequest:
    """`history` is what was said up to the previous response. Raises RequestError naming the field for what is well
    formed and yet cannot be meant."""
    instructions = (
        [ChatMessage("system", (TextPart(wire.instructions),), place="instructions")] if wire.instructions else []
    )
    return ChatRequest(
        messages=(*instructions, *history, *to_messages(wire)),
        tools=_tools(wire),
        tool_choice=_tool_choice(wire),
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        reasoning_effort=EFFORTS[(wire.reasoning and wire.reasoning.effort) or "none"],
        response_format=_response_format(wire),
        place="input",
        sampling=SamplingChoice(
            max_tokens=wire.max_output_tokens,
            temperature=wire.temperature,
            top_p=wire.top_p,
            num_logprobs=(wire.top_logprobs or 0) if wants_logprobs(wire) else None,
        ),
    )


def wants_logprobs(wire: ResponsesRequest) -> bool:
    return LOGPROBS in (wire.include or ()) or bool(wire.top_logprobs)


def to_messages(wire: ResponsesRequest) -> list[ChatMessage]:
    """The turns of `input`: items of the assistant that follow each other are one."""
    if isinstance(wire.input, str):
        return [ChatMessage("user", (TextPart(wire.input),) if wire.input else (), place="input")]
    turns: list[ChatMessage] = []
    parts: list[Part] = []
    calls: list[ToolCall] = []

    def end_turn() -> None:
        if parts or calls:
            turns.append(ChatMessage("assistant", tuple(parts), tuple(calls), place="input"))
            parts.clear()
            calls.clear()

    for i, item in enumerate(wire.input):
        place = f"input[{i}]"
        if isinstance(item, FunctionCallItem):
            calls.append(ToolCall(item.call_id, item.name, item.arguments, place))
        elif isinstance(item, ReasoningItem) or (isinstance(item, MessageItem) and item.role == "assistant"):
            if calls:  # in the chat format calls come last in a turn
                end_turn()
            parts += _said(item, place)
        else:
            end_turn()
            turns.append(_heard(item, place))
    end_turn()
    return turns


def _said(item: ReasoningItem | MessageItem, place: str) -> list[Part]:
    if isinstance(item, MessageItem):
        return [TextPart(text)] if (text := _text(item.content, f"{place}.content")) else []
    told = item.content or item.summary or ()
    thought = "".join(part.text for part in told) or decode_reasoning(item.encrypted_content or "")
    return [ThinkPart(thought)] if thought else []


def _heard(item: Item, place: str) -> ChatMessage:
    if isinstance(item, FunctionCallOutputItem):
        parts = (TextPart(_text(item.output, f"{place}.output")),)
        return ChatMessage("tool", parts, tool_call_id=item.call_id, place=place)
    assert isinstance(item, MessageItem)  # the others are the assistant's
    text = _text(item.content, f"{place}.content")
    return ChatMessage("user" if item.role == "user" else "system", (TextPart(text),) if text else (), place=place)


def _text(content: str | list[WirePart], place: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        if isinstance(part, MediaPart):
            raise RequestError(
                f"`{place}[{i}]` is a part of type {part.type}; this server reads text alone. Leave it out.",
                f"{place}[{i}]",
            )
        texts.append(part.refusal if isinstance(part, RefusalPart) else part.text)
    return "".join(texts)


def encode_reasoning(text: str) -> str:
    """Reasoning in the form in which clients that keep nothing carry it along: no secret, only opaque."""
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def decode_reasoning(encoded: str) -> str:
    """The reasoning; "" for what another server encoded."""
    try:
        return base64.b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return ""


def _tools(wire: ResponsesRequest) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            tool.name,
            tool.description or "",
            tool.parameters or {},
            strict=bool(tool.strict),
            name_place=f"tools[{i}].name",
            parameters_place=f"tools[{i}].parameters",
        )
        for i, tool in enumerate(wire.tools or ())
        if isinstance(tool, FunctionTool)
    )


def _tool_choice(wire: ResponsesRequest) -> ToolChoice:
    """Whether the choice can be met by the tools offered is chat's to say."""
    match wire.tool_choice:
        case None:
            return ToolChoice()
        case NamedToolChoice(name=name):
            return ToolChoice("named", name)
        case mode:
            return ToolChoice(mode)


def _response_format(wire: ResponsesRequest) -> ResponseFormat:
    if wire.text is None or wire.text.format is None:
        return ResponseFormat()
    if isinstance(wire.text.format, SchemaFormat):
        return ResponseFormat("json_schema", wire.text.format.schema_, place="text.format")
    return ResponseFormat(wire.text.format.type, place="text.format")
