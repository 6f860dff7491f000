"""The tools of a responses body as the model sees them, and its calls as the client knows them.

The chat format has functions alone, in one list of plain names: a tool of a namespace becomes `namespace__name`, a
custom tool a function whose one argument `input` is its text, a search for tools a function. Owns the way there and
back. Source of the forms: OpenAI's responses reference and the types of its official SDK, 3.57.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkstral.api.openai_responses.schema import (
    CustomTool,
    FunctionTool,
    NamespaceTool,
    ResponsesRequest,
    ToolSearchTool,
    ToolsItem,
)
from sparkstral.api.openai_responses.schema import Tool as WireTool
from sparkstral.chat.history import plain_name
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


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What is offered: to the model, and by its names there the same to the client."""

    tools: tuple[Tool, ...]
    by_name: Mapping[str, ClientTool]


def toolbox(wire: ResponsesRequest) -> Toolbox:
    """The tools of the body and of its items; a later item's take the places of those of their names."""
    offers = list(_offers(wire.tools or (), "tools"))
    for i, item in enumerate(wire.input if isinstance(wire.input, list) else ()):
        if isinstance(item, ToolsItem):
            more = list(_offers(item.tools, f"input[{i}].tools"))
            names = {tool.name for _, tool in more}
            offers = [offer for offer in offers if offer[1].name not in names] + more
    return Toolbox(tuple(tool for _, tool in offers), {tool.name: client for client, tool in offers})


def _offers(
    tools: Sequence[WireTool], place: str, namespace: str | None = None, preface: str = ""
) -> Iterator[tuple[ClientTool, Tool]]:
    """Each tool as both sides know it. `preface` is told with the first."""
    for i, tool in enumerate(tools):
        where = f"{place}[{i}]"
        match tool:
            case NamespaceTool():
                yield from _offers(tool.tools, f"{where}.tools", tool.name, tool.description or "")
            case FunctionTool():
                client = ClientTool("function_call", tool.name, namespace)
                yield client, _told(client, where, tool.parameters, preface, tool.description, strict=bool(tool.strict))
                preface = ""
            case CustomTool():
                client = ClientTool("custom_tool_call", tool.name, namespace)
                texts = (preface, tool.description, _grammar(tool))
                yield client, _told(client, where, _CUSTOM_PARAMETERS, *texts, strict=True)
                preface = ""
            case ToolSearchTool(execution="client"):
                client = ClientTool("tool_search_call", SEARCH)
                yield client, _told(client, where, tool.parameters, tool.description)


def _told(
    client: ClientTool, place: str, parameters: Mapping[str, Any] | None, *texts: str | None, strict: bool = False
) -> Tool:
    return Tool(
        model_name(client.name, client.namespace),
        "\n\n".join(text for text in texts if text),
        parameters or {},
        strict=strict,
        name_place=f"{place}.name",
        parameters_place=f"{place}.parameters",
    )


def model_name(name: str, namespace: str | None) -> str:
    """The plain name by which the model knows a tool."""
    if namespace is None:
        return plain_name(name)
    return plain_name(namespace + ("" if namespace.endswith(_BETWEEN) else _BETWEEN) + name)


def _grammar(tool: CustomTool) -> str:
    if tool.format is None or not tool.format.definition:
        return ""
    return f"The input follows this grammar ({tool.format.syntax or 'lark'}):\n{tool.format.definition}"
