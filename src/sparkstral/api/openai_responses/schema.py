"""The wire of POST /v1/responses: every field is supported, mapped, refused by name, or listed as ignored.

Owns what a body may look like, and nothing of what it means (see request.py). Source of the fields: OpenAI's responses
reference and the types of its official SDK, 3.57. null in an optional field means "not given".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sparkstral.api.openai_chat.schema import JsonSchemaFormat, PlainFormat
from sparkstral.api.wire import FiniteFloat, Ignored, JsonObject, Mapped, Refused, Wire, by_json_type, by_key
from sparkstral.chat.history import CALL_NAME
from sparkstral.types import MAX_TOP_LOGPROBS

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
NoStatus = Annotated[Any, Ignored("what was answered counts as it is")]
NoId = Annotated[Any, Ignored("the place in the list says as much")]
NoCaller = Annotated[Any, Ignored("the model is the one caller")]


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
    id: NoId = None
    status: NoStatus = None
    phase: Annotated[Any, Ignored("the chat format has no such thing")] = None


class FunctionCallItem(Wire):
    type: Literal["function_call"]
    call_id: str
    name: str  # of any form: the talk may come from another model
    namespace: str | None = None
    arguments: str
    id: NoId = None
    status: NoStatus = None
    caller: NoCaller = None


class CustomCallItem(Wire):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: Annotated[str, Mapped("told to the model as the one argument `input`")]
    id: NoId = None
    status: NoStatus = None
    caller: NoCaller = None


class CallOutputItem(Wire):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str | None = None
    output: Content
    id: NoId = None
    name: Annotated[Any, Ignored("the call says it")] = None
    namespace: Annotated[Any, Ignored("the call says it")] = None
    status: NoStatus = None
    caller: NoCaller = None


class BuiltInCallItem(Wire):
    """A call of a tool that OpenAI has a form of its own for; to the model it is one like the others."""

    type: Literal["tool_search_call", "local_shell_call", "shell_call", "apply_patch_call"]
    call_id: str | None = None
    action: JsonObject | None = None
    arguments: JsonObject | None = None
    operation: JsonObject | None = None
    execution: Annotated[Any, Ignored("what was called counts as it is")] = None
    id: NoId = None
    status: NoStatus = None
    caller: NoCaller = None


class BuiltInOutputItem(Wire):
    type: Literal["local_shell_call_output", "shell_call_output", "apply_patch_call_output"]
    call_id: str | None = None
    id: Annotated[str | None, Mapped("where there is no call_id it is the call's")] = None
    output: Annotated[Any, Mapped("what is no text is told as JSON")] = None
    status: Annotated[Any, Mapped("told where there is no output")] = None
    max_output_length: Annotated[Any, Ignored("what was answered counts as it is")] = None
    caller: NoCaller = None


class LeftOutItem(Wire):
    """Known to the wire so that it can be left out by its name: only OpenAI's servers could read it, or it tells
    nothing that a turn could hold."""

    type: str


class ItemReference(Wire):
    type: Literal["item_reference"] | None = None
    id: str


class ReasoningText(Wire):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Wire):
    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningText] | None, Mapped("read where there is no content")] = None
    content: list[ReasoningText] | None = None
    encrypted_content: Annotated[str | None, Mapped("read where there is neither content nor summary")] = None
    id: NoId = None
    status: NoStatus = None


class FunctionTool(Wire):
    type: Literal["function"]
    name: Annotated[str, Field(pattern=CALL_NAME.pattern)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    defer_loading: Annotated[Any, Ignored("every tool is told to the model")] = None
    allowed_callers: NoCaller = None
    output_schema: Annotated[Any, Ignored("the chat format has no place for it")] = None


class CustomFormat(Wire):
    type: Literal["text", "grammar"] | None = None
    syntax: str | None = None
    definition: str | None = None


class CustomTool(Wire):
    type: Literal["custom"]
    name: Annotated[str, Field(pattern=CALL_NAME.pattern)]
    description: str | None = None
    format: Annotated[CustomFormat | None, Mapped("a grammar is told in the description, and not held to")] = None
    defer_loading: Annotated[Any, Ignored("every tool is told to the model")] = None
    allowed_callers: NoCaller = None


class ToolSearchTool(Wire):
    type: Literal["tool_search"]
    execution: Annotated[
        Literal["client", "server"] | None, Mapped("offered with `client`; this server searches for no tools itself")
    ] = None
    description: str | None = None
    parameters: JsonObject | None = None


class HostedTool(Wire):
    """A tool that OpenAI's servers would run: the model is not told of it."""

    type: str


def _tool(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"@{kind}" if kind in ("function", "custom", "namespace", "tool_search") else "@hosted"


def _inner_tool(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"@{kind}" if kind in ("function", "custom") else "@hosted"


class NamespaceTool(Wire):
    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1)]
    description: Annotated[str | None, Mapped("told with the first of its tools")] = None
    tools: list[
        Annotated[
            Annotated[FunctionTool, Tag("@function")]
            | Annotated[CustomTool, Tag("@custom")]
            | Annotated[HostedTool, Tag("@hosted")],
            Discriminator(_inner_tool),
        ]
    ]


Tool = Annotated[
    Annotated[FunctionTool, Tag("@function")]
    | Annotated[CustomTool, Tag("@custom")]
    | Annotated[NamespaceTool, Tag("@namespace")]
    | Annotated[ToolSearchTool, Tag("@tool_search")]
    | Annotated[HostedTool, Tag("@hosted")],
    Discriminator(_tool),
]


class ToolsItem(Wire):
    """Tools that are offered from here on, or were found by a search: the model is told of them with the others."""

    type: Literal["additional_tools", "tool_search_output"]
    tools: list[Tool]
    call_id: Annotated[str | None, Mapped("the search whose result it is")] = None
    role: str | None = None
    execution: Annotated[Any, Ignored("what was found counts as it is")] = None
    id: NoId = None
    status: NoStatus = None


class AgentMessageItem(Wire):
    """What another agent said, as Codex hands it on: its texts are told by the user, what is encrypted is not."""

    type: Literal["agent_message"]
    content: list[JsonObject]
    author: str | None = None
    recipient: Annotated[Any, Ignored("it is told to this model")] = None
    id: NoId = None


_ITEMS = {
    "message": "@message",
    "function_call": "@function_call",
    "custom_tool_call": "@custom_call",
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), "@call_output"),
    **dict.fromkeys(("tool_search_call", "local_shell_call", "shell_call", "apply_patch_call"), "@built_in_call"),
    **dict.fromkeys(
        ("local_shell_call_output", "shell_call_output", "apply_patch_call_output"), "@built_in_output"
    ),
    **dict.fromkeys(("additional_tools", "tool_search_output"), "@tools"),
    "agent_message": "@agent_message",
    "reasoning": "@reasoning",
    "item_reference": "@reference",
    **dict.fromkeys(
        (
            "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
            "computer_call", "computer_call_output", "mcp_list_tools", "mcp_call", "mcp_approval_request",
            "mcp_approval_response", "compaction", "compaction_trigger", "configuration_update", "program",
            "program_output",
        ),
        "@left_out",
    ),
}  # fmt: skip


def _item(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is None and isinstance(value, dict):
        return "@message" if "role" in value else "@reference" if "id" in value else None
    return _ITEMS.get(kind) if isinstance(kind, str) else None


Item = Annotated[
    Annotated[MessageItem, Tag("@message")]
    | Annotated[FunctionCallItem, Tag("@function_call")]
    | Annotated[CustomCallItem, Tag("@custom_call")]
    | Annotated[CallOutputItem, Tag("@call_output")]
    | Annotated[BuiltInCallItem, Tag("@built_in_call")]
    | Annotated[BuiltInOutputItem, Tag("@built_in_output")]
    | Annotated[ToolsItem, Tag("@tools")]
    | Annotated[AgentMessageItem, Tag("@agent_message")]
    | Annotated[ReasoningItem, Tag("@reasoning")]
    | Annotated[ItemReference, Tag("@reference")]
    | Annotated[LeftOutItem, Tag("@left_out")],
    Discriminator(_item, custom_error_type="key:type", custom_error_message=f"must be one of {', '.join(_ITEMS)}"),
]
Input = Annotated[
    Annotated[str, Tag("@text")] | Annotated[list[Item], Tag("@list")],
    by_json_type("must be a text or a list of items"),
]


class NamedToolChoice(Wire):
    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class AllowedTool(Wire):
    """A tool of the request by its name; those without one are none that could be called here."""

    type: str
    name: str | None = None
    namespace: str | None = None


class AllowedToolsChoice(Wire):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("@text")]
    | Annotated[
        Annotated[NamedToolChoice, Tag("@named")] | Annotated[AllowedToolsChoice, Tag("@allowed")],
        by_key("type", {"function": "@named", "custom": "@named", "allowed_tools": "@allowed"}),
        Tag("@object"),
    ],
    by_json_type("must be auto, none, required, or an object that names a tool"),
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


def _not_told(tools: Sequence[Tool], place: str) -> Iterator[str]:
    """The places of tools that nobody here could run."""
    for i, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            yield from _not_told(tool.tools, f"{place}[{i}].tools")
        elif isinstance(tool, HostedTool) or (isinstance(tool, ToolSearchTool) and tool.execution != "client"):
            yield f"{place}[{i}].{tool.type}"


class ResponsesRequest(Wire):
    """The body of POST /v1/responses."""

    model: str | None = None
    input: Input
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: Annotated[
        list[Tool] | None,
        Mapped("what the client runs is offered; tools of other types are left out, and the header tells it"),
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
    metadata: Annotated[dict[str, str] | None, Mapped("sent back with the response")] = None

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

    def without_effect(self) -> Iterator[str]:
        """Also tools and items that the model is not told of, and includes that change nothing."""
        yield from super().without_effect()
        yield from _not_told(self.tools or (), "tools")
        for i, item in enumerate(self.input if isinstance(self.input, list) else ()):
            if isinstance(item, LeftOutItem):
                yield f"input[{i}].{item.type}"
            elif isinstance(item, ToolsItem):
                yield from _not_told(item.tools, f"input[{i}].tools")
        for name in self.include or ():
            if name not in (LOGPROBS, ENCRYPTED_REASONING):
                yield f"include.{name}"
