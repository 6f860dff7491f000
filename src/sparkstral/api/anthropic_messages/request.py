"""What a messages body means: wire object → ChatRequest.

Owns the translation of Anthropic's blocks into the chat format's turns, and the checks that need more than one field.
Repairs of message lists are chat's (history.py). Must not know tokens or status codes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal

from sparkstral.api.anthropic_messages.schema import (
    AssistantMessage,
    Base64Source,
    CountTokensRequest,
    DocumentBlock,
    FileSource,
    ImageBlock,
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
from sparkstral.api.images import image_from_base64, image_from_url, refuse_file_id
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
    said: list[str | ImagePart] = []
    for i, block in enumerate(message.content):
        if isinstance(block, ToolResultBlock):
            if said:
                turns.append(ChatMessage("user", _paragraphs(said), place=place))
                said = []
            turns.append(_result(block, f"{place}.content[{i}]"))
        elif not isinstance(block, str):
            said.append(_said(block, f"{place}.content[{i}]"))
    if said or not turns:
        turns.append(ChatMessage("user", _paragraphs(said), place=place))
    return turns


def _paragraphs(said: Sequence[str | ImagePart]) -> tuple[Part, ...]:
    """Texts that follow one another are one, images stand where they are."""
    parts: list[Part] = []
    for is_image, group in groupby(said, lambda each: isinstance(each, ImagePart)):
        if is_image:
            parts += [image for image in group if isinstance(image, ImagePart)]
        else:
            parts += _text_parts([text for text in group if isinstance(text, str)])
    return tuple(parts)


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
    said: list[str | ImagePart]
    if isinstance(block.content, str):
        said = [block.content]
    else:
        said = [_said(item, f"{place}.content[{i}]") for i, item in enumerate(block.content or ())]
    parts = _paragraphs(said)
    if block.is_error:
        text = parts[0].text if parts and isinstance(parts[0], TextPart) else ""
        if not text.lower().startswith("error"):
            parts = (TextPart(f"Error: {text or 'the tool failed.'}"), *parts[1 if text else 0 :])
    return ChatMessage("tool", parts, tool_call_id=block.tool_use_id, place=place)


def _image(block: ImageBlock, place: str) -> ImagePart:
    match block.source:
        case Base64Source(data=data):
            return image_from_base64(data, place)
        case FileSource():
            raise refuse_file_id(place)
        case source:
            return image_from_url(source.url, place)


def _said(block: UserBlock | ResultBlock, place: str) -> str | ImagePart:
    match block:
        case MediaBlock():
            raise RequestError(
                f"`{place}` is a block of type {block.type}; this server reads text and images. Leave it out.", place
            )
        case ImageBlock():
            return _image(block, place)
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
