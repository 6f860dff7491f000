"""What a responses body means: wire object → ChatRequest.

Owns the translation of items into turns. Repairs of message lists are chat's (history.py). Must not know tokens or
status codes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence

from sparkstral.api.efforts import EFFORTS
from sparkstral.api.images import image_from_url, refuse_file_id
from sparkstral.api.openai_responses.schema import (
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionTool,
    HostedTool,
    Item,
    MediaPart,
    MessageItem,
    NamedToolChoice,
    ReasoningItem,
    RefusalPart,
    ResponsesRequest,
    SchemaFormat,
)
from sparkstral.api.openai_responses.schema import ImagePart as WireImagePart
from sparkstral.api.openai_responses.schema import Part as WirePart
from sparkstral.api.openai_responses.schema import TextPart as WireTextPart
from sparkstral.errors import RequestError
from sparkstral.types import (
    ChatMessage,
    ChatRequest,
    ImagePart,
    Part,
    ResponseFormat,
    SamplingChoice,
    TextPart,
    ThinkPart,
    Tool,
    ToolCall,
    ToolChoice,
)

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"


def to_chat_request(wire: ResponsesRequest, history: Sequence[ChatMessage]) -> ChatRequest:
    """`history` is what was said up to the previous response. Raises RequestError naming the field for what is well
    formed and yet cannot be meant."""
    instructions = [ChatMessage("system", (TextPart(wire.instructions),))] if wire.instructions else []
    return ChatRequest(
        messages=(*instructions, *history, *to_messages(wire)),
        tools=_tools(wire),
        tool_choice=_tool_choice(wire),
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        reasoning_effort=EFFORTS[(wire.reasoning and wire.reasoning.effort) or "none"],
        response_format=_response_format(wire),
        sampling=SamplingChoice(
            max_tokens=wire.max_output_tokens,
            temperature=wire.temperature,
            top_p=wire.top_p,
            num_logprobs=(wire.top_logprobs or 0) if wants_logprobs(wire) else None,
        ),
    )


def wants_logprobs(wire: ResponsesRequest) -> bool:
    return LOGPROBS in (wire.include or ()) or bool(wire.top_logprobs)


def left_out(wire: ResponsesRequest) -> Iterator[str]:
    """The places of tools that the model is not told of, and of includes that change nothing."""
    for i, tool in enumerate(wire.tools or ()):
        if isinstance(tool, HostedTool):
            yield f"tools[{i}].{tool.type}"
    for name in wire.include or ():
        if name not in (LOGPROBS, ENCRYPTED_REASONING):
            yield f"include.{name}"


def to_messages(wire: ResponsesRequest) -> list[ChatMessage]:
    """The turns of `input`: items of the assistant that follow each other are one."""
    if isinstance(wire.input, str):
        return [ChatMessage("user", (TextPart(wire.input),) if wire.input else ())]
    turns: list[ChatMessage] = []
    parts: list[Part] = []
    calls: list[ToolCall] = []

    def end_turn() -> None:
        if parts or calls:
            turns.append(ChatMessage("assistant", tuple(parts), tuple(calls)))
            parts.clear()
            calls.clear()

    for i, item in enumerate(wire.input):
        place = f"input[{i}]"
        if isinstance(item, FunctionCallItem):
            calls.append(ToolCall(item.call_id, item.name, item.arguments))
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
        return list(_parts(item.content, f"{place}.content"))
    told = item.content or item.summary or ()
    thought = "".join(part.text for part in told) or decode_reasoning(item.encrypted_content or "")
    return [ThinkPart(thought)] if thought else []


def _heard(item: Item, place: str) -> ChatMessage:
    if isinstance(item, FunctionCallOutputItem):
        return ChatMessage("tool", _parts(item.output, f"{place}.output"), tool_call_id=item.call_id)
    assert isinstance(item, MessageItem)  # the others are the assistant's
    return ChatMessage("user" if item.role == "user" else "system", _parts(item.content, f"{place}.content"))


def _parts(content: str | list[WirePart], place: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    parts: list[Part] = []
    for i, wire in enumerate(content):
        part = _part(wire, f"{place}[{i}]")
        last = parts[-1] if parts else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):  # a text may come in several pieces
            parts[-1] = TextPart(last.text + part.text)
        else:
            parts.append(part)
    return tuple(parts)


def _part(part: WirePart, place: str) -> TextPart | ImagePart:
    match part:
        case MediaPart():
            raise RequestError(
                f"`{place}` is a part of type {part.type}; this server reads text and images. Leave it out.", place
            )
        case WireImagePart(image_url=None):
            if part.file_id is not None:
                raise refuse_file_id(place)
            raise RequestError(f"`{place}.image_url` is required.", f"{place}.image_url")
        case WireImagePart(image_url=str(url)):
            return image_from_url(url, place)
        case RefusalPart():
            return TextPart(part.refusal)
        case WireTextPart():
            return TextPart(part.text)
    raise TypeError(f"{type(part).__name__} is no part")


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
    tools: dict[str, Tool] = {}
    for i, tool in enumerate(wire.tools or ()):
        if not isinstance(tool, FunctionTool):
            continue
        if tool.name in tools:
            param = f"tools[{i}].name"
            raise RequestError(f"`{param}` is {tool.name!r}, as is that of a tool before it.", param)
        tools[tool.name] = Tool(tool.name, tool.description or "", tool.parameters or {}, strict=bool(tool.strict))
    return tuple(tools.values())


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
        return ResponseFormat("json_schema", wire.text.format.schema_)
    return ResponseFormat(wire.text.format.type)
