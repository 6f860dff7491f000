"""The tools of a responses body as the model sees them, and its calls as the client knows them.

The chat format has functions alone, in one list of plain names: a tool of a namespace becomes `namespace__name`, a
custom tool a function whose one argument `input` is its text, a search for tools a function. Owns the way there and
back. Source of the forms: OpenAI's responses reference and the types of its official SDK, 3.57.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkstral.api.openai_responses.schema import (
    CustomTool,
    FunctionTool,
    HostedTool,
    NamespaceTool,
    ResponsesRequest,
    ToolSearchTool,
    ToolsItem,
)
from sparkstral.api.openai_responses.schema import Tool as WireTool
from sparkstral.chat.history import plain_name
from sparkstral.errors import RequestError
from sparkstral.types import Tool

SEARCH = "tool_search"
_BETWEEN = "__"  # as clients spell tools of MCP servers without namespaces
_CUSTOM_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool as the client knows it: the type of the items that call it, and its name there."""

    item_type: str
    name: str
    namespace: str | None = None

    def begin(self, item_id: str, call_id: str) -> dict[str, Any]:
        """The item of a call that begins."""
        item: dict[str, Any] = {"id": item_id, "type": self.item_type, "status": "in_progress", "call_id": call_id}
        if self.item_type == "tool_search_call":
            return {**item, "execution": "client", "arguments": {}}
        item |= {"name": self.name, "input" if self.item_type == "custom_tool_call" else "arguments": ""}
        return item if self.namespace is None else {**item, "namespace": self.namespace}

    def complete(self, item: dict[str, Any], arguments: str) -> None:
        """Writes the arguments, as the model wrote them, into the call."""
        if self.item_type == "function_call":
            item["arguments"] = arguments
            return
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):  # the limit has cut it
            value = None
        if self.item_type == "tool_search_call":
            item["arguments"] = value if isinstance(value, dict) else {}
        else:
            text = value.get("input") if isinstance(value, dict) else None
            item["input"] = text if isinstance(text, str) else arguments


@dataclass(slots=True)
class Toolbox:
    """What is offered: to the model, and by the plain names the same to the client. `left_out` are the places of tools
    that the model is not told of."""

    tools: dict[str, Tool] = field(default_factory=dict)
    by_plain_name: dict[str, ClientTool] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def toolbox(wire: ResponsesRequest) -> Toolbox:
    """The tools of the body and of its items; a later item's tool takes the place of one of its name. Raises
    RequestError for a name that comes twice in one list."""
    box = Toolbox()
    _add(box, wire.tools or (), "tools")
    for i, item in enumerate(wire.input if isinstance(wire.input, list) else ()):
        if isinstance(item, ToolsItem):
            _add(box, item.tools, f"input[{i}].tools")
    return box


def _add(box: Toolbox, tools: Sequence[WireTool], place: str) -> None:
    seen: set[str] = set()
    for param, client, tool in _offers(box, tools, place):
        if tool.name in seen:
            raise RequestError(f"`{param}` is {client.name!r}, as is that of a tool before it.", param)
        seen.add(tool.name)
        box.tools[tool.name] = tool
        box.by_plain_name[tool.name] = client


def _offers(
    box: Toolbox, tools: Sequence[WireTool], place: str, namespace: str | None = None, preface: str = ""
) -> Iterator[tuple[str, ClientTool, Tool]]:
    """The place of a name, and both sides of the tool. `preface` is told with the first."""
    for i, tool in enumerate(tools):
        where = f"{place}[{i}]"
        match tool:
            case NamespaceTool():
                yield from _offers(box, tool.tools, f"{where}.tools", tool.name, tool.description or "")
            case FunctionTool():
                told = Tool(
                    model_name(tool.name, namespace),
                    _paragraphs(preface, tool.description),
                    tool.parameters or {},
                    strict=bool(tool.strict),
                )
                yield f"{where}.name", ClientTool("function_call", tool.name, namespace), told
                preface = ""
            case CustomTool():
                told = Tool(
                    model_name(tool.name, namespace),
                    _paragraphs(preface, tool.description, _grammar(tool)),
                    _CUSTOM_PARAMETERS,
                    strict=True,
                )
                yield f"{where}.name", ClientTool("custom_tool_call", tool.name, namespace), told
                preface = ""
            case ToolSearchTool(execution="client"):
                told = Tool(SEARCH, tool.description or "", tool.parameters or {})
                yield f"{where}.type", ClientTool("tool_search_call", SEARCH), told
            case ToolSearchTool() | HostedTool():
                box.left_out.append(f"{where}.{tool.type}")


def model_name(name: str, namespace: str | None) -> str:
    """The plain name by which the model knows a tool."""
    if namespace is None:
        return plain_name(name)
    return plain_name(namespace + ("" if namespace.endswith(_BETWEEN) else _BETWEEN) + name)


def _paragraphs(*texts: str | None) -> str:
    return "\n\n".join(text for text in texts if text)


def _grammar(tool: CustomTool) -> str:
    if tool.format is None or not tool.format.definition:
        return ""
    return f"The input follows this grammar ({tool.format.syntax or 'lark'}):\n{tool.format.definition}"
