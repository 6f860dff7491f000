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
from pydantic import ValidationError

from sparkstral.chat.history import CALL_NAME, ends_in_open_thought, repair_history
from sparkstral.chat.images import PreparedImage
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import DEFAULT_MAX_IMAGES
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, ChatRequest, ImageInput, ImagePart, Part, Prompt, TextPart, ThinkPart, Tool


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """`repairs` names what was changed in the message list, by the protocol and by chat/history.py."""

    prompt: Prompt
    repairs: tuple[str, ...]


def render(request: ChatRequest, tokenizer: ChatTokenizer, max_images: int = DEFAULT_MAX_IMAGES) -> RenderedPrompt:
    """The prompt of `request`. Raises RequestError, naming the field, when it cannot be rendered."""
    _check_tools(request)
    history = repair_history(request.messages, request.place)
    _check_response_format(request, history.messages[-1])
    images = _Images(tokenizer, history.messages, max_images)
    try:
        encoded = tokenizer.mistral.encode_chat_completion(
            ChatCompletionRequest(
                messages=[_message(message, images) for message in history.messages],
                tools=[_tool(tool) for tool in request.tools] or None,
                reasoning_effort=ReasoningEffort(request.reasoning_effort),
            )
        )
    except (MistralCommonException, ValueError, RecursionError) as error:
        raise RequestError(f"The messages cannot be rendered: {_reason(error)}.", request.place) from error
    prompt = Prompt(
        tuple(encoded.tokens), ends_in_open_thought(history.messages), images.placed(encoded.tokens, encoded.images)
    )
    return RenderedPrompt(prompt, (*request.repairs, *history.repairs))


class _Images:
    """The images of one request, prepared in the order of the messages."""

    def __init__(self, tokenizer: ChatTokenizer, messages: Sequence[ChatMessage], max_images: int) -> None:
        """Raises RequestError for the first that cannot be read, or is one too many."""
        self._tokenizer = tokenizer
        self._prepared: list[PreparedImage] = []
        self._numbers: dict[int, int] = {}  # by the part's identity: places of a stored talk may come again
        parts = [part for message in messages for part in message.parts if isinstance(part, ImagePart)]
        if len(parts) > max_images:
            raise RequestError(
                f"The messages hold {len(parts)} images; this server reads {max_images} of a request (--max-images). "
                "Send fewer.",
                parts[max_images].place,
            )
        for part in parts:
            if tokenizer.image_reader is None:
                raise RequestError(f"`{part.place}` is an image, and this model's tokenizer knows none.", part.place)
            self._numbers[id(part)] = len(self._prepared)
            self._prepared.append(tokenizer.image_reader.prepare(part.data, part.place))

    def chunk(self, part: ImagePart) -> ContentChunk:
        number = self._numbers[id(part)]
        return self._tokenizer.image_places.chunk(number, self._prepared[number])

    def placed(self, token_ids: Sequence[int], numbers: Sequence[Any]) -> tuple[ImageInput, ...]:
        """`numbers` in the order in which mistral-common has put them: it moves a last image before its text."""
        if not self._prepared:
            return ()
        return self._tokenizer.image_places.find(token_ids, [self._prepared[int(number)] for number in numbers])


def _reason(error: Exception) -> str:
    """What mistral-common has against it, in a line without a full stop. Pydantic's own text has several, and links."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, RecursionError):
        return "they are nested too deeply"
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _check_tools(request: ChatRequest) -> None:
    names: dict[str, str] = {}  # and where each stands
    for tool in request.tools:
        place = tool.name_place
        if not CALL_NAME.fullmatch(tool.name):
            raise RequestError(
                f"{place} is {tool.name!r}; a name has 1 to 64 of the letters a-z and A-Z, digits, underscores and "
                "dashes.",
                place,
            )
        if tool.name in names:
            raise RequestError(f"{place} is {tool.name!r}, as is {names[tool.name]}; a name is of one tool.", place)
        names[tool.name] = place
        _check_schema(tool.parameters, tool.parameters_place)
        if tool.parameters.get("type", "object") != "object":
            param = tool.parameters_place
            raise RequestError(f'{param} must describe an object ("type": "object").', param)
    choice = request.tool_choice
    if choice.mode in ("required", "named") and not (names if choice.allowed is None else choice.allowed):
        raise RequestError("tool_choice asks for a call, but there are no tools; offer one.", "tool_choice")
    for name in (choice.name,) if choice.mode == "named" else choice.allowed or ():
        if name not in names:
            raise RequestError(
                f"tool_choice names {name!r}, which is not among the tools: {', '.join(names)}.", "tool_choice"
            )


def _check_schema(schema: Mapping[str, Any], param: str) -> None:
    try:
        validate_json_schema_by_draft7(dict(schema))
    except ValueError as error:
        raise RequestError(f"{param} is no JSON Schema: {error}", param) from error
    except RecursionError:
        raise RequestError(f"{param} is nested too deeply to be read.", param) from None


def _check_response_format(request: ChatRequest, last: ChatMessage) -> None:
    place = request.response_format.place
    if request.response_format.schema is not None:
        _check_schema(request.response_format.schema, place)
    if (
        last.prefix
        and request.response_format.mode != "text"
        and any(isinstance(p, TextPart) for p in last.parts)
    ):
        raise RequestError(
            f"{place} asks for JSON, but the last message is an assistant's that is to be continued, and JSON can only "
            f"be enforced from its beginning. End with a user message, or leave {place} out.",
            place,
        )


def _tool(tool: Tool) -> wire_tools.Tool:
    function = wire_tools.Function(
        name=tool.name, description=tool.description, parameters=dict(tool.parameters), strict=tool.strict
    )
    return wire_tools.Tool(function=function)


def _message(message: ChatMessage, images: _Images) -> wire.ChatMessage:
    content = _content(message.parts, images)
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


def _content(parts: Sequence[Part], images: _Images) -> str | list[ContentChunk]:
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) == len(parts):
        return "".join(texts)
    return [_chunk(part, images) for part in parts]


def _chunk(part: Part, images: _Images) -> ContentChunk:
    match part:
        case TextPart(text):
            return TextChunk(text=text)
        case ThinkPart(text, closed):
            return ThinkChunk(thinking=text, closed=closed)
        case ImagePart():
            return images.chunk(part)


def _arguments(text: str) -> str:
    """JSON as it is, nothing as an empty object, and what is no JSON as the text that it is."""
    if not text.strip():
        return "{}"
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text)
    return text
