"""The wire of POST /v1/messages: every field is supported, mapped, refused by name, or listed as ignored.

Owns what a body may look like, and nothing of what it means (see request.py). Must not know status codes, tokens or
the engine. Source of the fields: Anthropic's messages reference and the types of its official SDK, 2.15.

null in an optional field means "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from sparkstral.api.openai_sampling import MAX_STOP_STRINGS, MAX_TOP_K, StopString
from sparkstral.api.wire import FiniteFloat, Ignored, JsonObject, Mapped, Refused, Wire, by_json_type, by_key
from sparkstral.chat.history import CALL_NAME

NoCacheControl = Annotated[Any, Ignored("prefixes are always reused")]


class TextBlock(Wire):
    type: Literal["text"]
    text: str
    cache_control: NoCacheControl = None
    citations: Annotated[Any, Ignored("the model cites nothing")] = None


class Base64Source(Wire):
    type: Literal["base64"]
    media_type: Annotated[str | None, Mapped("the image's own bytes tell what it is")] = None
    data: str


class UrlSource(Wire):
    type: Literal["url"]
    url: Annotated[str, Mapped("fetched where --allow-image-host names its host; a data URL always")]


class FileSource(Wire):
    """Known to the wire so that it can be refused by its name."""

    type: Literal["file"]
    file_id: Annotated[Any, Refused("this server keeps no files; send base64")] = None


class ImageBlock(Wire):
    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("@base64")]
        | Annotated[UrlSource, Tag("@url")]
        | Annotated[FileSource, Tag("@file")],
        by_key("type", {"base64": "@base64", "url": "@url", "file": "@file"}),
    ]
    cache_control: NoCacheControl = None


class MediaBlock(Wire):
    """Known to the wire so that it can be refused by its name."""

    type: Literal["container_upload"]


class PlainTextSource(Wire):
    type: Literal["text"]
    media_type: Literal["text/plain"] | None = None
    data: str


class TextListSource(Wire):
    type: Literal["content"]
    content: Annotated[
        Annotated[str, Tag("@text")] | Annotated[list[TextBlock], Tag("@list")],
        by_json_type("must be a text or a list of text blocks"),
    ]


class OtherSource(Wire):
    """Known to the wire so that it can be refused by its name."""

    type: Literal["base64", "url", "file"]


class DocumentBlock(Wire):
    type: Literal["document"]
    source: Annotated[
        Annotated[PlainTextSource, Tag("@text")]
        | Annotated[TextListSource, Tag("@content")]
        | Annotated[OtherSource, Tag("@other")],
        by_key("type", {"text": "@text", "content": "@content", **dict.fromkeys(("base64", "url", "file"), "@other")}),
    ]
    title: str | None = None
    context: str | None = None
    cache_control: NoCacheControl = None
    citations: Annotated[Any, Ignored("the model cites nothing")] = None


class SearchResultBlock(Wire):
    type: Literal["search_result"]
    content: list[TextBlock]
    source: str
    title: str
    cache_control: NoCacheControl = None
    citations: Annotated[Any, Ignored("the model cites nothing")] = None


class ThinkingBlock(Wire):
    type: Literal["thinking"]
    thinking: str
    signature: Annotated[Any, Mapped("accepted, and not checked")] = None


class RedactedThinkingBlock(Wire):
    type: Literal["redacted_thinking"]
    data: Annotated[Any, Ignored("only another server could read it")] = None


class ToolUseBlock(Wire):
    type: Literal["tool_use"]
    id: str
    name: str  # of any form: the talk may come from another model
    input: JsonObject
    cache_control: NoCacheControl = None


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[DocumentBlock, Tag("@document")]
    | Annotated[SearchResultBlock, Tag("@search_result")]
    | Annotated[ImageBlock, Tag("@image")],
    by_key("type", {"text": "@text", "document": "@document", "search_result": "@search_result", "image": "@image"}),
]


class ToolResultBlock(Wire):
    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[
            Annotated[str, Tag("@text")] | Annotated[list[ResultBlock], Tag("@list")],
            by_json_type("must be a text or a list of blocks"),
        ]
        | None
    ) = None
    is_error: Annotated[bool | None, Mapped("the result begins with `Error: `")] = None
    cache_control: NoCacheControl = None


UserBlock = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[DocumentBlock, Tag("@document")]
    | Annotated[SearchResultBlock, Tag("@search_result")]
    | Annotated[ToolResultBlock, Tag("@tool_result")]
    | Annotated[ImageBlock, Tag("@image")]
    | Annotated[MediaBlock, Tag("@media")],
    by_key(
        "type",
        {
            "text": "@text",
            "document": "@document",
            "search_result": "@search_result",
            "tool_result": "@tool_result",
            "image": "@image",
            "container_upload": "@media",
        },
    ),
]

AssistantBlock = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[ThinkingBlock, Tag("@thinking")]
    | Annotated[RedactedThinkingBlock, Tag("@redacted")]
    | Annotated[ToolUseBlock, Tag("@tool_use")],
    by_key(
        "type",
        {"text": "@text", "thinking": "@thinking", "redacted_thinking": "@redacted", "tool_use": "@tool_use"},
    ),
]

TextBlocks = Annotated[
    Annotated[str, Tag("@text")] | Annotated[list[TextBlock], Tag("@list")],
    by_json_type("must be a text or a list of text blocks"),
]


class UserMessage(Wire):
    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("@text")] | Annotated[list[UserBlock], Tag("@list")],
        by_json_type("must be a text or a list of blocks"),
    ]


class AssistantMessage(Wire):
    role: Literal["assistant"]
    content: Annotated[
        Annotated[str, Tag("@text")] | Annotated[list[AssistantBlock], Tag("@list")],
        by_json_type("must be a text or a list of blocks"),
    ]


class SystemMessage(Wire):
    role: Literal["system"]
    content: TextBlocks


Message = Annotated[
    Annotated[UserMessage, Tag("@user")]
    | Annotated[AssistantMessage, Tag("@assistant")]
    | Annotated[SystemMessage, Tag("@system")],
    by_key("role", {"user": "@user", "assistant": "@assistant", "system": "@system"}),
]


class Tool(Wire):
    """A tool of the client's own. Anthropic's server tools (`web_search_…`, `bash_…`) are refused by their type."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=CALL_NAME.pattern)]
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None
    cache_control: NoCacheControl = None
    eager_input_streaming: Annotated[Any, Ignored("arguments are always streamed as they come")] = None
    input_examples: Annotated[Any, Ignored("the chat format has no place for them; write them in the description")] = (
        None
    )
    defer_loading: Annotated[Any, Ignored("every tool is told to the model")] = None
    allowed_callers: Annotated[Any, Ignored("the model is the one caller")] = None


class ToolChoice(Wire):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Wire):
    type: Annotated[
        Literal["enabled", "disabled", "adaptive", "between_tools"],
        Mapped("`disabled` is effort none; `enabled` high; the others by `output_config.effort`, high without one"),
    ]
    budget_tokens: Annotated[Any, Ignored("only max_tokens bounds the thinking")] = None
    display: Annotated[Any, Ignored("thinking is always shown whole")] = None


class OutputFormat(Wire):
    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(Wire):
    effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        Mapped("`none`, `minimal`, `low` become none; `medium` and up become high"),
    ] = None
    format: OutputFormat | None = None


class CountTokensRequest(Wire):
    """The body of POST /v1/messages/count_tokens."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    system: TextBlocks | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: NoCacheControl = None
    speed: Annotated[Any, Ignored("there is one speed")] = None
    context_management: Annotated[Any, Ignored("nothing is cut from the talk")] = None


class MessagesRequest(CountTokensRequest):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOP_K)] | None = None

    metadata: Annotated[Any, Ignored("nothing is kept about users")] = None
    service_tier: Annotated[Any, Ignored("there is one tier")] = None
    inference_geo: Annotated[Any, Ignored("there is one machine")] = None
    diagnostics: Annotated[Any, Ignored("there are none")] = None
    user_profile_id: Annotated[Any, Ignored("nothing is kept about users")] = None
    workspace_id: Annotated[Any, Ignored("there are none")] = None
    container: Annotated[Any, Refused("this server runs no code; offer a tool")] = None
    mcp_servers: Annotated[Any, Refused("this server calls no others; offer their tools yourself", ([],))] = None
    output_format: Annotated[Any, Refused("use output_config.format")] = None
