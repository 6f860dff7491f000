"""What of a schema a grammar holds an answer to, and what does not stop it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkstral.chat.grammar import grammar_for, with_schema_held
from sparkstral.chat.schemas import FORMATS, without_no_ops
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.errors import RequestError
from sparkstral.structured.check import GrammarCheck
from sparkstral.types import ChatMessage, ChatRequest, ResponseFormat, TextPart, Tool
from tests.support.chat_cases import output_ids
from tests.support.matcher import allows

ASK = (ChatMessage("user", (TextPart("When is high water?"),)),)
CHECK = GrammarCheck()
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"  # as pydantic writes it


def held(
    schema: dict[str, Any], value: Any, tokenizer: ChatTokenizer, *, strict: bool = False
) -> tuple[bool, list[str]]:
    """Whether `value` can be written, and what is not held to."""
    asked = ChatRequest(ASK, response_format=ResponseFormat("json_schema", schema, strict=strict))
    request, left_out = with_schema_held(asked, CHECK)
    grammar = grammar_for(request, CHECK)
    assert grammar is not None
    text = json.dumps(value, ensure_ascii=False)
    return allows(grammar, output_ids([text, "</s>"], tokenizer)), list(left_out)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "format": "binary"}, "x", 1),
        ({"type": "string", "format": "password", "minLength": 2}, "xy", "x"),
        ({"type": "integer", "format": "int32"}, 1, "1"),
        (
            {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
            {"a": 1}, {"a": "1"},
        ),
        ({"type": "array", "uniqueItems": False, "items": {"type": "integer"}}, [1, 1], ["1"]),
        ({"type": "string", "then": {"minLength": 9}, "minContains": 2}, "x", 1),
        ({"oneOf": [{"type": "object", "properties": {"a": {"const": i}}} for i in (1, 2)]}, {"a": 2}, {"a": 3}),
    ],
    ids=lambda value: sorted(set(value) - {"type"})[0] if isinstance(value, dict) and "type" in value else "",
)  # fmt: skip
@pytest.mark.parametrize("strict", [False, True])
def test_what_says_nothing_stops_nothing(
    schema: dict[str, Any], good: Any, bad: Any, strict: bool, tokenizer: ChatTokenizer
) -> None:
    assert held(schema, good, tokenizer, strict=strict) == (True, [])
    assert held(schema, bad, tokenizer, strict=strict) == (False, [])
    arguments = {"properties": {"a": schema}, "required": ["a"]}
    assert grammar_for(ChatRequest(ASK, tools=(Tool("f", "", arguments, strict=True),)), CHECK) is not None


@pytest.mark.parametrize(
    ("schema", "good", "bad", "left_out"),
    [
        ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, [1, 1], ["1"], "uniqueItems"),
        ({"type": "string", "pattern": DECIMAL, "maxLength": 4}, "1.50", "15.50", "pattern"),
        ({"type": "string", "not": {"const": "a"}}, "a", 1, "not"),
        (
            {"patternProperties": {"^a(?=b)": {"type": "string"}}, "additionalProperties": False, "type": "object"},
            {"ab": "x"}, [], "patternProperties",
        ),
        ({"type": "object", "minProperties": 1, "properties": {"a": {"type": "integer"}}}, {"a": 1}, {"a": ""},
         "minProperties"),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, {"a": 1}, 1, "propertyNames"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_held_to_is_left_out_and_told_or_refused_where_it_is_strict(
    schema: dict[str, Any], good: Any, bad: Any, left_out: str, tokenizer: ChatTokenizer
) -> None:
    inner = {"type": "object", "properties": {"x": {"anyOf": [schema]}}, "required": ["x"]}
    for value, is_good in ((good, True), (bad, False)):
        can_be, told = held(inner, {"x": value}, tokenizer)
        assert can_be is is_good
        assert f"response_format.properties.x.anyOf[0].{left_out}" in told
    with pytest.raises(RequestError, match="cannot be enforced"):
        held(inner, {"x": good}, tokenizer, strict=True)


def test_only_what_must_be_is_left_out(tokenizer: ChatTokenizer) -> None:
    letters = {"type": "string", "pattern": "^[a-z]+$"}
    names = {"not": {"type": "integer"}, "pattern": letters, "if": {"const": {"not": 1}}}
    schema = {"type": "object", "properties": names, "required": list(names), "uniqueItems": True}
    value = {"not": 1, "pattern": "abc", "if": {"not": 1}}
    assert held(schema, value, tokenizer) == (True, ["response_format.uniqueItems"])
    for change in ({"not": "1"}, {"pattern": "ABC"}, {"if": {}}):
        assert held(schema, value | change, tokenizer)[0] is False


def test_formats_that_are_known_are_held_to(tokenizer: ChatTokenizer) -> None:
    for name in FORMATS:
        schema = {"type": "string", "format": name}
        assert without_no_ops(schema) == schema
        assert held(schema, "@ @", tokenizer) == (False, []), name


TREE: dict[str, Any] = {"type": "object", "properties": {"of": {"$ref": "#/$defs/t"}}, "required": ["of"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#"}]}},
        {"$defs": {"t": TREE}, "allOf": [{"$ref": "#/$defs/t"}]},
    ],
    ids=repr,
)
def test_a_schema_that_never_ends_is_refused_in_our_words(schema: dict[str, Any], tokenizer: ChatTokenizer) -> None:
    with pytest.raises(RequestError, match=r"^response_format: .*refers to itself") as refused:
        held(schema, 1, tokenizer)
    assert refused.value.param == "response_format"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, {"a": {}}),
        ({"type": "array", "items": {"$ref": "#"}}, [[]]),
        ({"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"a": None}),
        ({"$defs": {"t": {"anyOf": [TREE, {"type": "null"}]}}, "$ref": "#/$defs/t"}, {"of": {"of": None}}),
        ({"$defs": {"a/b": {"type": "null"}}, "$ref": "#/$defs/a~1b"}, None),
    ],
    ids=repr,
)
def test_a_schema_that_can_end_is_not(schema: dict[str, Any], value: Any, tokenizer: ChatTokenizer) -> None:
    assert held(schema, value, tokenizer) == (True, [])
