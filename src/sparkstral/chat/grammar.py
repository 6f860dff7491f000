"""What a request allows the model to write, as an llguidance grammar.

Owns the choice between no constraint, a banned token and a grammar, and the grammar's text. Must not know how
a grammar is run. The order of an answer is that of the chat format: thinking, then text and calls, or JSON.
Control tokens are spelled <[id]>; text cannot hold one. mistral-common's own grammars are not used: they let
a call name any tool, and know neither a prefilled [THINK] nor an effort without thinking.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkstral.chat.schemas import is_endless, loosened, without_no_ops
from sparkstral.chat.tokenizer import Control
from sparkstral.errors import RequestError
from sparkstral.structured.check import GrammarCheck
from sparkstral.types import ChatRequest, GrammarSpec, Tool

_ANY_OBJECT = {"type": "object"}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
# A blank, or a new line and up to 32 blanks of indentation: what printers of JSON write in one place. With more room a
# weak model writes blanks or empty lines until max_tokens.
_LAYOUT = {"whitespace_pattern": r" ?(\r?\n[ \t]{0,32})?", "coerce_one_of": True}  # oneOf is held to as anyOf


def banned_token_ids(request: ChatRequest) -> tuple[int, ...]:
    """Tokens that must never be sampled: [TOOL_CALLS] when there is no tool that may be called."""
    return () if _callable_tools(request) else (Control.TOOL_CALLS.value,)


def grammar_for(request: ChatRequest, check: GrammarCheck, *, prefilled_think: bool = False) -> GrammarSpec | None:
    """The grammar of a request that `render` accepted, or None when any text may be written.

    `prefilled_think`: the prompt ends inside an open [THINK] (`Prompt.prefilled_think`). Raises RequestError, naming
    the place of the response format or of a strict tool's parameters, when a schema cannot be enforced; to know, the
    grammar is compiled once: milliseconds, a second for a schema of 1 MB.
    """
    tools = _callable_tools(request)
    wants_json = request.response_format.mode != "text"
    if not tools and not wants_json:
        return None
    schemas = {tool.parameters_place: _arguments_schema(tool) for tool in tools}
    rules = [_start_rule(request, prefilled_think), "TEXT: /(.|\\n)+/"]
    if tools:
        rules += _call_rules(tools, request.parallel_tool_calls)
    if request.tool_choice.mode in ("required", "named"):
        rules.append("answer: calls")
    elif wants_json:
        schema = without_no_ops(request.response_format.schema or _ANY_OBJECT)
        schemas[request.response_format.place] = schema
        rules += [f"answer: json{' | calls' if tools else ''}", f"json: {_json(schema)}"]
    else:
        rules.append("answer: TEXT? calls?")
    for place, schema in schemas.items():
        if is_endless(schema):
            reason = "it refers to itself without an end, so that no value is true to it."
            raise RequestError(f"{place}: this schema cannot be enforced: {reason}", place)
    lark = "\n".join(rules)
    if reason := check.reason_against(lark):
        raise _refusal(schemas, reason, check)
    return GrammarSpec(lark)


def with_schema_held(request: ChatRequest, check: GrammarCheck) -> tuple[ChatRequest, tuple[str, ...]]:
    """The request whose response format, unless it is strict, asks for no more than a grammar can hold to, and the
    places of what was left out of it. What still cannot be compiled is `grammar_for`'s to refuse."""
    asked = request.response_format
    if asked.schema is None or asked.strict or not _reason_against(without_no_ops(asked.schema), check):
        return request, ()
    schema, left_out = loosened(
        without_no_ops(asked.schema),
        asked.place,
        lambda pattern: not _reason_against({"type": "string", "pattern": pattern}, check),
    )
    return replace(request, response_format=replace(asked, schema=schema)), tuple(left_out)


def _reason_against(schema: Mapping[str, Any], check: GrammarCheck) -> str:
    return check.reason_against(f"start: {_json(schema)}")


def _callable_tools(request: ChatRequest) -> list[Tool]:
    choice = request.tool_choice
    if choice.mode == "none":
        return []
    allowed = (choice.name,) if choice.mode == "named" else choice.allowed
    return [tool for tool in request.tools if allowed is None or tool.name in allowed]


def _start_rule(request: ChatRequest, prefilled_think: bool) -> str:
    begin, end = _control(Control.BEGIN_THINK), _control(Control.END_THINK)
    if prefilled_think:
        return f"start: TEXT? {end} answer"
    if request.reasoning_effort == "none":
        return "start: answer"
    return f"start: ({begin} TEXT? {end})? answer"


def _call_rules(tools: list[Tool], is_parallel: bool) -> list[str]:
    """One alternative for each schema: the tools that are not strict share that of any object."""
    names: dict[str, list[str]] = {}
    for tool in tools:
        names.setdefault(_json(_arguments_schema(tool)), []).append(f'"{tool.name}"')
    begin, arguments = _control(Control.TOOL_CALLS), _control(Control.ARGS)
    call = " | ".join(
        f"{begin} ({' | '.join(named)}) {arguments} {schema}" for schema, named in names.items()
    )
    return [f"calls: call{'+' if is_parallel else ''}", f"call: {call}"]


def _arguments_schema(tool: Tool) -> Mapping[str, Any]:
    if not tool.strict:
        return _ANY_OBJECT
    return without_no_ops({**_ANY_OBJECT, **tool.parameters}) if tool.parameters else _NO_ARGUMENTS


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _LAYOUT})}"


def _control(control: Control) -> str:
    return f"<[{control.value}]>"


def _refusal(schemas: Mapping[str, Mapping[str, Any]], reason: str, check: GrammarCheck) -> RequestError:
    """Names the schema that is to blame, or the last one when only all together are too large."""
    *_, param = schemas
    for place, schema in schemas.items():
        if alone := _reason_against(schema, check):
            param, reason = place, alone
            break
    return RequestError(f"{param}: this schema cannot be enforced: {reason}", param)
