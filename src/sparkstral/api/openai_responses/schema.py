"""The wire of POST /v1/responses: every field is supported, mapped, refused by name, or listed as ignored.

Owns what a body may look like, and nothing of what it means (see request.py). Source of the fields: OpenAI's responses
reference and the types of its official SDK, 3.57. null in an optional field means "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sparkstral.api.openai_chat.schema import JsonSchemaFormat, PlainFormat
from sparkstral.api.wire import FiniteFloat, Ignored, JsonObject, Mapped, Refused, Wire, by_json_type, by_key
from sparkstral.chat.history import CALL_NAME
from sparkstral.types import MAX_TOP_LOGPROBS

NoStatus = Annotated[Any, Ignored("what was answered counts as it is")]


class TextPart(Wire):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[Any, Ignored("the model cites nothing")] = None
    logprobs: Annotated[Any, Ignored("they tell the model nothing")] = None


class RefusalPart(Wire):
    type: Literal["refusal"]
    refusal: str


class ImagePart(Wire):
    type: Literal["input_image"]
    image_url: Annotated[
        str | None, Mapped("a data URL in base64; http and https URLs where --allow-image-host names their host")
    ] = None
    file_id: Annotated[Any, Refused("this server keeps no files; send image_url")] = None
    detail: Annotated[Any, Ignored("images are read at their own size")] = None


class MediaPart(Wire):
    """Known to the wire so that it can be refused by its name."""

    type: Literal["input_file", "input_audio"]


_PARTS = {
    **dict.fromkeys(("input_text", "output_text", "text"), "@text"),
    "refusal": "@refusal",
    "input_image": "@image",
    **dict.fromkeys(("input_file", "input_audio"), "@media"),
}
Part = Annotated[
    Annotated[TextPart, Tag("@text")]
    | Annotated[RefusalPart, Tag("@refusal")]
    | Annotated[ImagePart, Tag("@image")]
    | Annotated[MediaPart, Tag("@media")],
    by_key("type", _PARTS),
]
Content = Annotated[
    Annotated[str, Tag("@text")] | Annotated[list[Part], Tag("@list")],
    by_json_type("must be a text or a list of parts"),
]


class MessageItem(Wire):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: Annotated[Any, Ignored("the place in the list says as much")] = None
    status: NoStatus = None
    phase: Annotated[Any, Ignored("the chat format has no such thing")] = None


class FunctionCallItem(Wire):
    type: Literal["function_call"]
    call_id: str
    name: str  # of any form: the talk may come from another model
    arguments: str
    id: Annotated[Any, Ignored("the place in the list says as much")] = None
    status: NoStatus = None


class FunctionCallOutputItem(Wire):
    type: Literal["function_call_output"]
    call_id: str | None = None
    output: Content
    id: Annotated[Any, Ignored("the place in the list says as much")] = None
    status: NoStatus = None


class ReasoningText(Wire):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Wire):
    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningText] | None, Mapped("read where there is no content")] = None
    content: list[ReasoningText] | None = None
    encrypted_content: Annotated[str | None, Mapped("read where there is neither content nor summary")] = None
    id: Annotated[Any, Ignored("the place in the list says as much")] = None
    status: NoStatus = None


_ITEMS = {
    "message": "@message",
    "function_call": "@function_call",
    "function_call_output": "@function_call_output",
    "reasoning": "@reasoning",
}


def _item(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is None and isinstance(value, dict) and "role" in value:
        return "@message"
    return _ITEMS.get(kind) if isinstance(kind, str) else None


Item = Annotated[
    Annotated[MessageItem, Tag("@message")]
    | Annotated[FunctionCallItem, Tag("@function_call")]
    | Annotated[FunctionCallOutputItem, Tag("@function_call_output")]
    | Annotated[ReasoningItem, Tag("@reasoning")],
    Discriminator(_item, custom_error_type="key:type", custom_error_message=f"must be one of {', '.join(_ITEMS)}"),
]
Input = Annotated[
    Annotated[str, Tag("@text")] | Annotated[list[Item], Tag("@list")],
    by_json_type("must be a text or a list of items"),
]


class FunctionTool(Wire):
    type: Literal["function"]
    name: Annotated[str, Field(pattern=CALL_NAME.pattern)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class HostedTool(Wire):
    """A tool that OpenAI's servers would run, or whose calls are no JSON: the model is not told of it."""

    type: str


def _tool(value: Any) -> str:
    return "@function" if isinstance(value, dict) and value.get("type") == "function" else "@hosted"


Tool = Annotated[
    Annotated[FunctionTool, Tag("@function")] | Annotated[HostedTool, Tag("@hosted")], Discriminator(_tool)
]


class NamedToolChoice(Wire):
    type: Literal["function"]
    name: str


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("@text")] | Annotated[NamedToolChoice, Tag("@object")],
    by_json_type("must be auto, none, required, or an object that names a function"),
]


class SchemaFormat(JsonSchemaFormat):
    type: Literal["json_schema"]


class TextConfig(Wire):
    format: (
        Annotated[
            Annotated[PlainFormat, Tag("@plain")] | Annotated[SchemaFormat, Tag("@schema")],
            by_key("type", {"text": "@plain", "json_object": "@plain", "json_schema": "@schema"}),
        ]
        | None
    ) = None
    verbosity: Annotated[Any, Ignored("the model has no such setting")] = None


class Reasoning(Wire):
    effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        Mapped("`none`, `minimal`, `low` become none, the default; `medium` and up become high"),
    ] = None
    summary: Annotated[
        Literal["auto", "concise", "detailed", "none"] | None,
        Mapped("the reasoning itself is sent as its summary; else as content of its item"),
    ] = None
    generate_summary: Annotated[Any, Ignored("the old name of summary")] = None
    context: Annotated[Any, Ignored("all reasoning that is sent is told to the model")] = None
    mode: Annotated[Any, Ignored("there is one mode")] = None


class ResponsesRequest(Wire):
    """The body of POST /v1/responses."""

    model: str | None = None
    input: Input
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: Annotated[
        list[Tool] | None, Mapped("functions are offered; tools of other types are left out, and the header tells it")
    ] = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: Annotated[
        list[str] | None, Mapped("`message.output_text.logprobs` and `reasoning.encrypted_content` change something")
    ] = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    metadata: Annotated[JsonObject | None, Mapped("sent back with the response")] = None

    background: Annotated[bool | None, Refused("an answer is made while its client waits", (False,))] = None
    conversation: Annotated[Any, Refused("use previous_response_id")] = None
    prompt: Annotated[Any, Refused("prompts are not kept here; send instructions and input")] = None
    max_tool_calls: Annotated[Any, Refused("it counts tools that a server runs, and this one runs none")] = None
    moderation: Annotated[Any, Refused("this server moderates nothing")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None, Ignored("nothing is cut from the talk; what is too long is refused")
    ] = None
    stream_options: Annotated[Any, Ignored("events are not padded")] = None
    context_management: Annotated[Any, Ignored("nothing is cut from the talk")] = None
    user: Annotated[Any, Ignored("nothing is kept about users")] = None
    safety_identifier: Annotated[Any, Ignored("nothing is kept about users")] = None
    service_tier: Annotated[Any, Ignored("there is one tier")] = None
    prompt_cache_key: Annotated[Any, Ignored("prefixes are found without a key")] = None
    prompt_cache_retention: Annotated[Any, Ignored("prefixes stay while there is room")] = None
    prompt_cache_options: Annotated[Any, Ignored("prefixes are found without options")] = None
    client_metadata: Annotated[Any, Ignored("nothing is kept about clients")] = None
