"""What a responses body means: wire object → ChatRequest.

Owns the translation of items into turns. Repairs of message lists are chat's (history.py). Must not know tokens or
status codes.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import TypeAdapter

from sparkstral.api.efforts import EFFORTS
from sparkstral.api.images import image_from_url, refuse_file_id
from sparkstral.api.openai_responses.schema import (
    LOGPROBS,
    AgentMessageItem,
    AllowedToolsChoice,
    BuiltInCallItem,
    BuiltInOutputItem,
    CallOutputItem,
    CustomCallItem,
    CustomTool,
    FunctionCallItem,
    FunctionTool,
    Item,
    ItemReference,
    LeftOutItem,
    MediaPart,
    MessageItem,
    NamedToolChoice,
    NamespaceTool,
    ReasoningItem,
    RefusalPart,
    ResponsesRequest,
    SchemaFormat,
    ToolsItem,
)
from sparkstral.api.openai_responses.schema import ImagePart as WireImagePart
from sparkstral.api.openai_responses.schema import Part as WirePart
from sparkstral.api.openai_responses.schema import TextPart as WireTextPart
from sparkstral.api.openai_responses.schema import Tool as WireTool
from sparkstral.api.openai_responses.tools import model_name
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

_ITEM: TypeAdapter[Item] = TypeAdapter(Item)


def to_chat_request(wire: ResponsesRequest, history: Sequence[ChatMessage], tools: Iterable[Tool]) -> ChatRequest:
    """`history` is what was said up to the previous response, `tools` those of the toolbox. Raises RequestError naming
    the field for what is well formed and yet cannot be meant."""
    instructions = (
        [ChatMessage("system", (TextPart(wire.instructions),), place="instructions")] if wire.instructions else []
    )
    return ChatRequest(
        messages=(*instructions, *history, *to_turns(wire.input)),
        tools=tuple(tools),
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


def to_turns(items: str | Sequence[Item]) -> list[ChatMessage]:
    """The turns of `input`, or of an output: items of the assistant that follow each other are one."""
    if isinstance(items, str):
        return [ChatMessage("user", (TextPart(items),) if items else (), place="input")]
    turns: list[ChatMessage] = []
    parts: list[Part] = []
    calls: list[ToolCall] = []

    def end_turn() -> None:
        if parts or calls:
            turns.append(ChatMessage("assistant", tuple(parts), tuple(calls), place="input"))
            parts.clear()
            calls.clear()

    for i, item in enumerate(items):
        place = f"input[{i}]"
        if isinstance(item, LeftOutItem) or (isinstance(item, ToolsItem) and item.type == "additional_tools"):
            continue
        if isinstance(item, FunctionCallItem | CustomCallItem | BuiltInCallItem):
            calls.append(_call(item, place))
        elif isinstance(item, ReasoningItem) or (isinstance(item, MessageItem) and item.role == "assistant"):
            if calls:  # in the chat format calls come last in a turn
                end_turn()
            parts += _said(item, place)
        else:
            end_turn()
            turns.append(_heard(item, place))
    end_turn()
    return turns


def _call(item: FunctionCallItem | CustomCallItem | BuiltInCallItem, place: str) -> ToolCall:
    if isinstance(item, BuiltInCallItem):
        told = item.action or item.arguments or item.operation or {}
        return ToolCall(item.call_id or item.id or "", item.type.removesuffix("_call"), _json(told), place)
    name = item.name if item.namespace is None else model_name(item.name, item.namespace)
    arguments = item.arguments if isinstance(item, FunctionCallItem) else _json({"input": item.input})
    return ToolCall(item.call_id, name, arguments, place)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _said(item: ReasoningItem | MessageItem, place: str) -> list[Part]:
    if isinstance(item, MessageItem):
        return list(_parts(item.content, f"{place}.content"))
    told = item.content or item.summary or ()
    thought = "".join(part.text for part in told) or decode_reasoning(item.encrypted_content or "")
    return [ThinkPart(thought)] if thought else []


def _heard(item: Item, place: str) -> ChatMessage:
    match item:
        case CallOutputItem():
            parts = _parts(item.output, f"{place}.output")
            return ChatMessage("tool", parts, tool_call_id=item.call_id, place=place)
        case BuiltInOutputItem(output=output):
            told = item.status or "" if output is None else output
            return _result(told if isinstance(told, str) else _json(told), item.call_id or item.id, place)
        case ToolsItem():
            return _result(f"Found: {', '.join(_names(item.tools)) or 'nothing'}", item.call_id, place)
        case AgentMessageItem():
            said = "".join(text for part in item.content if isinstance(text := part.get("text"), str))
            said = f"{item.author or 'Another agent'} says:\n{said}" if said else ""
            return ChatMessage("user", (TextPart(said),) if said else (), place=place)
        case MessageItem():
            role: Literal["user", "system"] = "user" if item.role == "user" else "system"
            return ChatMessage(role, _parts(item.content, f"{place}.content"), place=place)
        case _:
            raise AssertionError(f"{item.type} is the assistant's, or was resolved")


def _result(text: str, call_id: str | None, place: str) -> ChatMessage:
    return ChatMessage("tool", (TextPart(text),), tool_call_id=call_id, place=place)


def _names(tools: Sequence[WireTool]) -> Iterator[str]:
    """By which the model will know them."""
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            yield from (model_name(t.name, tool.name) for t in tool.tools if isinstance(t, FunctionTool | CustomTool))
        elif isinstance(tool, FunctionTool | CustomTool):
            yield tool.name


def resolve_references(wire: ResponsesRequest, find: Callable[[str, str], dict[str, Any]]) -> None:
    """Puts the items that `input` refers to in the places of the references. `find` gives the item of an id and raises
    for one that is not kept; its second argument is the place."""
    if isinstance(wire.input, list):
        wire.input = [
            to_item(find(item.id, f"input[{i}].id")) if isinstance(item, ItemReference) else item
            for i, item in enumerate(wire.input)
        ]


def to_item(item: Mapping[str, Any]) -> Item:
    """An item of an answer of ours, as the history holds it."""
    return _ITEM.validate_python(item)


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


def _tool_choice(wire: ResponsesRequest) -> ToolChoice:
    """Whether the choice can be met by the tools offered is chat's to say."""
    match wire.tool_choice:
        case None:
            return ToolChoice()
        case NamedToolChoice(name=name, namespace=namespace):
            return ToolChoice("named", model_name(name, namespace))
        case AllowedToolsChoice(mode=mode, tools=tools):
            return ToolChoice(mode, allowed=tuple(model_name(t.name, t.namespace) for t in tools if t.name))
        case mode:
            return ToolChoice(mode)


def _response_format(wire: ResponsesRequest) -> ResponseFormat:
    if wire.text is None or wire.text.format is None:
        return ResponseFormat()
    form = wire.text.format
    if isinstance(form, SchemaFormat):
        return ResponseFormat("json_schema", form.schema_, strict=form.strict is True, place="text.format")
    return ResponseFormat(form.type, place="text.format")
