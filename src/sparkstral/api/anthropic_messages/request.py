"""What a messages body means: wire object → ChatRequest.

Owns the translation of Anthropic's blocks into the chat format's turns, and the checks that need more than one field.
Repairs of message lists are chat's (history.py). Must not know tokens or status codes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from sparkstral.api.anthropic_messages.schema import (
    AssistantMessage,
    CountTokensRequest,
    DocumentBlock,
    MediaBlock,
    Message,
    MessagesRequest,
    OtherSource,
    PlainTextSource,
    RedactedThinkingBlock,
    ResultBlock,
    SearchResultBlock,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserBlock,
)
from sparkstral.api.efforts import EFFORTS
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

_BETWEEN_BLOCKS = "\n\n"  # blocks are paragraphs; the chat format has nothing finer than a text

# Claude Code puts its version and a checksum of the talk into a system block of its own, another one in each request.
# It tells the model nothing, and would keep any prefix from being found again.
_BILLING = "x-anthropic-billing-header:"



def to_chat_request(wire: CountTokensRequest) -> ChatRequest:
    """Raises RequestError naming the field for what is well formed and yet cannot be meant."""
    repairs: list[str] = []
    messages = _system(wire, repairs)
    for i, message in enumerate(wire.messages):
        messages += _messages(message, f"messages[{i}]", repairs)
    last = messages[-1]
    if last.role == "assistant" and not last.tool_calls:  # the protocol's way to begin an answer for the model
        messages[-1] = replace(last, prefix=True)
    choice = wire.tool_choice
    request = ChatRequest(
        messages=tuple(messages),
        tools=_tools(wire),
        tool_choice=_tool_choice(wire),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        reasoning_effort=_effort(wire),
        response_format=_response_format(wire),
        repairs=tuple(dict.fromkeys(repairs)),
    )
    if isinstance(wire, MessagesRequest):
        sampling = SamplingChoice(
            max_tokens=wire.max_tokens,
            temperature=wire.temperature,
            top_p=wire.top_p,
            top_k=wire.top_k,
            stop=tuple(wire.stop_sequences or ()),
        )
        request = replace(request, sampling=sampling)
    return request


def _system(wire: CountTokensRequest, repairs: list[str]) -> list[ChatMessage]:
    if wire.system is None:
        return []
    texts = _texts(wire.system)
    kept = [text for text in texts if not text.startswith(_BILLING)]
    if kept != texts:
        repairs.append("drop_billing_header")
    return [ChatMessage("system", _text_parts(kept), place="system")] if kept else []


def _texts(content: str | list[TextBlock]) -> list[str]:
    return [content] if isinstance(content, str) else [block.text for block in content]


def _text_parts(texts: Sequence[str]) -> tuple[Part, ...]:
    text = _BETWEEN_BLOCKS.join(text for text in texts if text)
    return (TextPart(text),) if text else ()


def _messages(message: Message, place: str, repairs: list[str]) -> list[ChatMessage]:
    """One message of the wire is a turn, or several: results are turns of their own in the chat format."""
    content = message.content
    if isinstance(message, SystemMessage):
        return [ChatMessage("system", _text_parts(_texts(message.content)), place=place)]
    if isinstance(message, AssistantMessage):
        if isinstance(content, str):
            return [ChatMessage("assistant", _text_parts([content]), place=place)]
        return _assistant(message, place, repairs)
    if isinstance(content, str):
        return [ChatMessage("user", _text_parts([content]), place=place)]
    turns: list[ChatMessage] = []
    texts: list[str] = []
    for i, block in enumerate(message.content):
        if isinstance(block, ToolResultBlock):
            if texts:
                turns.append(ChatMessage("user", _text_parts(texts), place=place))
                texts = []
            turns.append(_result(block, f"{place}.content[{i}]"))
        elif not isinstance(block, str):
            texts.append(_text(block, f"{place}.content[{i}]"))
    if texts or not turns:
        turns.append(ChatMessage("user", _text_parts(texts), place=place))
    return turns


def _assistant(message: AssistantMessage, place: str, repairs: list[str]) -> list[ChatMessage]:
    turns: list[ChatMessage] = []
    parts: list[Part] = []
    calls: list[ToolCall] = []

    def end_turn() -> None:
        turns.append(ChatMessage("assistant", tuple(parts), tuple(calls), place=place))
        parts.clear()
        calls.clear()

    for i, block in enumerate(message.content):
        if isinstance(block, ToolUseBlock):
            arguments = json.dumps(block.input, ensure_ascii=False)
            calls.append(ToolCall(block.id, block.name, arguments, f"{place}.content[{i}]"))
            continue
        if calls:  # in the chat format calls come last in a turn
            end_turn()
        if isinstance(block, ThinkingBlock):
            parts.append(ThinkPart(block.thinking))
        elif isinstance(block, RedactedThinkingBlock):
            repairs.append("drop_redacted_thinking")
        elif isinstance(block, TextBlock):
            parts.append(TextPart(block.text))
    end_turn()
    return turns


def _result(block: ToolResultBlock, place: str) -> ChatMessage:
    if isinstance(block.content, str):
        text = block.content
    else:
        texts = [_text(item, f"{place}.content[{i}]") for i, item in enumerate(block.content or ())]
        text = _BETWEEN_BLOCKS.join(texts)
    if block.is_error and not text.lower().startswith("error"):
        text = f"Error: {text or 'the tool failed.'}"
    return ChatMessage("tool", (TextPart(text),), tool_call_id=block.tool_use_id, place=place)


def _text(block: UserBlock | ResultBlock, place: str) -> str:
    match block:
        case MediaBlock():
            raise RequestError(
                f"`{place}` is a block of type {block.type}; this server reads text alone. Leave it out.", place
            )
        case DocumentBlock():
            heading = "\n".join(text for text in (block.title, block.context) if text)
            body = _document(block, place)
            return f"{heading}\n{body}" if heading else body
        case SearchResultBlock():
            return "\n".join([f"{block.title} ({block.source})", *(item.text for item in block.content)])
        case TextBlock():
            return block.text
        case _:
            raise RequestError(f"`{place}` cannot stand here.", place)


def _document(block: DocumentBlock, place: str) -> str:
    match block.source:
        case PlainTextSource(data=data):
            return data
        case OtherSource():
            place += ".source"
            raise RequestError(
                f"`{place}` is of type {block.source.type}; this server reads documents of type text and content. "
                "Send the document's text.",
                place,
            )
        case _:
            content = block.source.content
            return content if isinstance(content, str) else _BETWEEN_BLOCKS.join(item.text for item in content)


def _tools(wire: CountTokensRequest) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            tool.name,
            tool.description or "",
            tool.input_schema,
            strict=bool(tool.strict),
            name_place=f"tools[{i}].name",
            parameters_place=f"tools[{i}].input_schema",
        )
        for i, tool in enumerate(wire.tools or ())
    )


def _tool_choice(wire: CountTokensRequest) -> ToolChoice:
    """Whether the choice can be met by the tools offered is chat's to say."""
    choice = wire.tool_choice
    match choice and choice.type:
        case "any":
            return ToolChoice("required")
        case "none":
            return ToolChoice("none")
        case "tool":
            if choice is None or choice.name is None:
                raise RequestError("`tool_choice.name` is required with type tool.", "tool_choice.name")
            return ToolChoice("named", choice.name)
        case _:
            return ToolChoice()


def _effort(wire: CountTokensRequest) -> Literal["none", "high"]:
    asked = wire.output_config.effort if wire.output_config else None
    by_word = EFFORTS[asked] if asked else None
    match wire.thinking and wire.thinking.type:
        case "disabled":
            return "none"
        case "enabled":
            return "high"
        case "adaptive" | "between_tools":
            return by_word or "high"
        case _:
            return by_word or "none"


def _response_format(wire: CountTokensRequest) -> ResponseFormat:
    if wire.output_config is None or wire.output_config.format is None:
        return ResponseFormat()
    return ResponseFormat("json_schema", wire.output_config.format.schema_, place="output_config.format")
