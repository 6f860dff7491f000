"""What a request allows the model to write, as an llguidance grammar.

Owns the choice between no constraint, a banned token and a grammar, and the grammar's text. Must not know how a
grammar is run. The order of an answer is that of the chat format: thinking, then text and calls, or JSON. Control
tokens are spelled <[id]>; text cannot hold one. mistral-common's own grammars are not used: they let a call name any
tool, and know neither a prefilled [THINK] nor an effort without thinking.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher

from sparkstral.chat.tokenizer import Control
from sparkstral.errors import RequestError
from sparkstral.types import ChatRequest, GrammarSpec, Tool

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
# Up to 32 characters of white space in one place, enough for indented JSON: without a bound, a weak model can write
# white space until max_tokens.
_LAYOUT = {"whitespace_pattern": r"[ \n\r\t]{0,32}"}


def banned_token_ids(request: ChatRequest) -> tuple[int, ...]:
    """Tokens that must never be sampled for `request`: [TOOL_CALLS] when there is no tool that may be called."""
    return () if _callable_tools(request) else (Control.TOOL_CALLS.value,)


def grammar_for(request: ChatRequest, *, prefilled_think: bool = False) -> GrammarSpec | None:
    """The grammar of a request that `render` accepted, or None when any text may be written.

    `prefilled_think`: the prompt ends inside an open [THINK] (`Prompt.prefilled_think`). Raises RequestError (param
    response_format, or tools[i].function.parameters of a strict tool) when a schema cannot be enforced.
    """
    tools = _callable_tools(request)
    wants_json = request.response_format.mode != "text"
    if not tools and not wants_json:
        return None
    rules = ["TEXT: /(.|\\n)+/"]
    if request.tool_choice.mode in ("required", "named"):
        answer = "calls"
    elif wants_json:
        answer = "json | calls" if tools else "json"
    else:
        answer = "TEXT? calls?"
    rules.append(f"answer: {answer}")
    if "json" in answer:
        rules.append(f"json: %json {_json_schema(request)}")
    if tools:
        rules += _call_rules(tools, is_parallel=request.parallel_tool_calls)
    begin, end = _control(Control.BEGIN_THINK), _control(Control.END_THINK)
    if prefilled_think:
        rules.append(f"start: TEXT? {end} answer")
    elif request.reasoning_effort == "none":
        rules.append("start: answer")
    else:
        rules.append(f"start: ({begin} TEXT? {end})? answer")
    return GrammarSpec("\n".join(rules) + "\n")


def _callable_tools(request: ChatRequest) -> list[tuple[int, Tool]]:
    """The tools that may be called, with their index in the request."""
    choice = request.tool_choice
    if choice.mode == "none":
        return []
    return [
        (i, tool)
        for i, tool in enumerate(request.tools)
        if choice.mode != "named" or tool.name == choice.name
    ]


def _call_rules(tools: list[tuple[int, Tool]], *, is_parallel: bool) -> list[str]:
    begin, arguments = _control(Control.TOOL_CALLS), _control(Control.ARGS)
    loose = " | ".join(f'"{tool.name}"' for _, tool in tools if not tool.strict)
    calls = [f"{begin} ({loose}) {arguments} %json {_schema(_ANY_OBJECT)}"] if loose else []
    for i, tool in tools:
        if tool.strict:
            schema = _checked_schema(tool.parameters or _NO_ARGUMENTS, f"tools[{i}].function.parameters")
            calls.append(f'{begin} "{tool.name}" {arguments} %json {schema}')
    return [f"calls: call{'+' if is_parallel else ''}", f"call: {' | '.join(calls)}"]


def _json_schema(request: ChatRequest) -> str:
    if request.response_format.mode == "json_object":
        return _schema(_ANY_OBJECT)
    return _checked_schema(request.response_format.schema or {}, "response_format")


def _checked_schema(schema: Mapping[str, Any], param: str) -> str:
    """The schema's text. Raises RequestError with llguidance's reason when it cannot be compiled."""
    try:
        text = _schema(schema)
    except RecursionError:
        raise RequestError(f"{param}: the schema is nested too deeply to be read.", param) from None
    error = LLMatcher.validate_grammar(f"start: %json {text}", None)
    if error:
        reason = error.split("JSON schema: ")[-1].split("\n   1 |")[0]
        raise RequestError(f"{param}: the schema cannot be enforced: {reason}", param)
    return text


def _schema(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _LAYOUT})


def _control(control: Control) -> str:
    return f"<[{control.value}]>"
