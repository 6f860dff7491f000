"""The wire of POST /v1/chat/completions: every field is supported, refused by name, or listed as ignored.

Owns what a body may look like, and nothing of what it means (see request.py). Must not know status codes,
tokens or the engine. Source of the fields: OpenAI's chat completions reference; `reasoning_content`,
`thinking` parts, `prefix`, `top_k` and `min_p` are the spellings of Mistral's API and of the open servers.

null in an optional field means "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from sparkstral.api.openai_sampling import SamplingFields
from sparkstral.api.wire import Ignored, JsonObject, Mapped, Refused, Wire, by_json_type, by_key
from sparkstral.chat.history import CALL_NAME
from sparkstral.types import MAX_TOP_LOGPROBS


class TextPart(Wire):
    type: Literal["text"]
    text: str


class RefusalPart(Wire):
    type: Literal["refusal"]
    refusal: str


Thinking = Annotated[
    Annotated[str, Tag("@text")] | Annotated[list[TextPart], Tag("@list")],
    by_json_type("must be a text or a list of text parts"),
]


class ThinkingPart(Wire):
    """Past reasoning; `thinking` is a text, or a list of text parts as Mistral's API writes it."""

    type: Literal["thinking"]
    thinking: Thinking
    closed: bool | None = None


class ImageUrl(Wire):
    url: Annotated[str, Mapped("a data URL in base64; http and https URLs where --allow-image-host names their host")]
    detail: Annotated[Any, Ignored("images are read at their own size")] = None


class ImagePart(Wire):
    """In a user's message, or in a tool's result. Mistral's API writes the URL without an object."""

    type: Literal["image_url"]
    image_url: Annotated[
        Annotated[str, Tag("@text")] | Annotated[ImageUrl, Tag("@object")],
        by_json_type("must be a URL, or an object with a url"),
    ]


class MediaPart(Wire):
    """Known to the wire so that it can be refused by its name."""

    type: Literal["input_audio", "audio_url", "video_url", "file"]


MEDIA = dict.fromkeys(("input_audio", "audio_url", "video_url", "file"), "@media")


ContentPart = Annotated[
    Annotated[TextPart, Tag("@text")]
    | Annotated[RefusalPart, Tag("@refusal")]
    | Annotated[ThinkingPart, Tag("@thinking")]
    | Annotated[ImagePart, Tag("@image")]
    | Annotated[MediaPart, Tag("@media")],
    by_key("type", {"text": "@text", "refusal": "@refusal", "thinking": "@thinking", "image_url": "@image", **MEDIA}),
]


Content = Annotated[
    Annotated[str, Tag("@text")] | Annotated[list[ContentPart], Tag("@list")],
    by_json_type("must be a text or a list of parts"),
]


Arguments = Annotated[
    Annotated[str, Tag("@text")] | Annotated[JsonObject, Tag("@object")],
    by_json_type("must be JSON in a text, or an object"),
]


class CalledFunction(Wire):
    name: str  # of any form: the talk may come from another model
    arguments: Arguments | None = None  # clients send JSON text, some an object, some nothing


class AssistantToolCall(Wire):
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class SystemMessage(Wire):
    role: Literal["system", "developer"]
    content: Content


class UserMessage(Wire):
    role: Literal["user"]
    content: Content


class AssistantMessage(Wire):
    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[AssistantToolCall] | None = None
    function_call: Annotated[
        CalledFunction | None, Mapped("the old form of one call; read where there are no tool_calls")
    ] = None
    prefix: bool | None = None


class ToolMessage(Wire):
    role: Literal["tool", "function"]  # function is the old name
    content: Content | None = None
    tool_call_id: str | None = None
    name: str | None = None


Message = Annotated[
    Annotated[SystemMessage, Tag("@system")]
    | Annotated[UserMessage, Tag("@user")]
    | Annotated[AssistantMessage, Tag("@assistant")]
    | Annotated[ToolMessage, Tag("@tool")],
    by_key(
        "role",
        {
            "system": "@system",
            "developer": "@system",
            "user": "@user",
            "assistant": "@assistant",
            "tool": "@tool",
            "function": "@tool",
        },
    ),
]


class FunctionDefinition(Wire):
    name: Annotated[str, Field(pattern=CALL_NAME.pattern)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class FunctionTool(Wire):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Wire):
    name: str


class NamedToolChoice(Wire):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Wire):
    mode: Literal["auto", "required"]
    tools: list[NamedToolChoice]


class AllowedToolsChoice(Wire):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoiceField = Annotated[
    Annotated[Literal["auto", "none", "required", "any"], Tag("@text")]
    | Annotated[
        Annotated[NamedToolChoice, Tag("@named")] | Annotated[AllowedToolsChoice, Tag("@allowed")],
        by_key("type", {"function": "@named", "allowed_tools": "@allowed"}),
        Tag("@object"),
    ],
    by_json_type("must be auto, none, required, or an object that names a function"),
]


class JsonSchemaFormat(Wire):
    name: Annotated[str | None, Ignored("the model is not told it")] = None
    description: Annotated[str | None, Ignored("the model is not told it; write it into the messages")] = None
    schema_: Annotated[JsonObject, Field(alias="schema")]
    strict: Annotated[
        bool | None,
        Mapped("what no grammar can hold to is refused with true; else it is named in `x-sparkstral-not-enforced`"),
    ] = None


class PlainFormat(Wire):
    type: Literal["text", "json_object"]


class SchemaFormat(Wire):
    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormatField = Annotated[
    Annotated[PlainFormat, Tag("@plain")] | Annotated[SchemaFormat, Tag("@schema")],
    by_key("type", {"text": "@plain", "json_object": "@plain", "json_schema": "@schema"}),
]


class ChatCompletionRequest(SamplingFields):
    """The body of POST /v1/chat/completions."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormatField | None = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        Mapped("`none`, `minimal`, `low` become none, the default; `medium` and up become high"),
    ] = None

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    functions: Annotated[Any, Refused("use tools", ([],))] = None
    function_call: Annotated[Any, Refused("use tool_choice", ("none", "auto"))] = None
    modalities: Annotated[Any, Refused("the model writes text only", (["text"],))] = None
    audio: Annotated[Any, Refused("the model writes text only")] = None
    prediction: Annotated[Any, Refused("predicted outputs are not served")] = None
    web_search_options: Annotated[Any, Refused("this server does not search the web; offer a tool")] = None
    guided_json: Annotated[Any, Refused("use response_format")] = None
    guided_regex: Annotated[Any, Refused("use response_format")] = None
    guided_choice: Annotated[Any, Refused("use response_format")] = None
    guided_grammar: Annotated[Any, Refused("use response_format")] = None
    structured_outputs: Annotated[Any, Refused("use response_format")] = None
    stop_token_ids: Annotated[Any, Refused("use stop", ([],))] = None
    chat_template: Annotated[Any, Refused("the model has one prompt format, and it is built in")] = None

    user: Annotated[Any, Ignored("nothing is kept about users")] = None
    metadata: Annotated[Any, Ignored("requests are not stored")] = None
    store: Annotated[Any, Ignored("requests are not stored")] = None
    service_tier: Annotated[Any, Ignored("there is one tier")] = None
    safety_identifier: Annotated[Any, Ignored("nothing is kept about users")] = None
    prompt_cache_key: Annotated[Any, Ignored("prefixes are found without a key")] = None
    prompt_cache_retention: Annotated[Any, Ignored("prefixes stay while there is room")] = None
    cache_prompt: Annotated[Any, Ignored("prefixes are always reused")] = None
    verbosity: Annotated[Any, Ignored("the model has no such setting")] = None
    add_generation_prompt: Annotated[Any, Ignored("a last assistant message is continued")] = None
    continue_final_message: Annotated[Any, Ignored("a last assistant message is continued")] = None
