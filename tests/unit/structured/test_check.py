"""Schemas are measured before they are compiled; each grammar is compiled once, and not for ever."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from sparkstral.structured import check
from sparkstral.structured.check import GrammarCheck
from sparkstral.structured.depth import MAX_DEPTH, schema_depth, too_deep
from sparkstral.structured.matcher import CompiledGrammar, GrammarError
from tests.unit.structured.test_grammar import TOKENIZER


def nested(levels: int, innermost: Any) -> Any:
    for _ in range(levels):
        innermost = {"type": "array", "items": innermost}
    return innermost


def chain(number: int, levels: int = 0, reference: str = "#/$defs/{}") -> dict[str, Any]:
    """Definitions of so many levels, each of which refers to the next at its innermost."""
    parts = {f"d{i}": nested(levels, {"$ref": reference.format(f"d{i + 1}")}) for i in range(number)}
    return {"$ref": reference.format("d0"), "$defs": {**parts, f"d{number}": {"type": "null"}}}


TREE = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"next": {"$ref": "#/$defs/t"}}}}}


@pytest.mark.parametrize(
    ("schema", "depth"),
    [
        ({}, 1),
        (nested(9, {}), 10),
        ({"anyOf": [nested(3, {}), nested(5, {})]}, 7),
        (chain(40), 43),
        (chain(30, levels=4), 30 * 5 + 3),
        (TREE, 5),
        ({"properties": {f"p{i}": {"$ref": "#"} for i in range(50)}}, 3),
        ({"properties": {"$ref": {"type": "string"}}}, 3),
        ({"$ref": "#/nowhere/9"}, 1),
        ({"a~b": {"c d": [nested(9, {})]}, "items": nested(3, {"$ref": "#/a~0b/c%20d/0"})}, 15),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_depth_of_a_schema(schema: dict[str, Any], depth: int) -> None:
    assert depth <= (schema_depth(schema) or 0) <= depth + 2


@pytest.mark.parametrize(
    "schema",
    [
        chain(1500),
        chain(35, levels=55),
        nested(MAX_DEPTH, {}),
        {"$defs": {f"d{i}": {"$anchor": f"a{i}", "items": {"$ref": f"#a{i + 1}"}} for i in range(300)}, "$ref": "#a0"},
        {
            "$ref": "http://x/0",
            "$defs": {f"d{i}": {"$id": f"http://x/{i}", "items": {"$ref": f"http://x/{i + 1}"}} for i in range(300)},
        },
        {"$defs": {f"d{i}": {"$id": f"http://x/{i}", "$ref": f"http://x/{i}#/a{i}"} for i in range(3000)}},
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_would_overrun_the_stack_is_not_compiled(schema: dict[str, Any]) -> None:
    lark = f"start: %json {json.dumps(schema)}"
    assert too_deep(lark)
    assert GrammarCheck().reason_against(lark)
    with pytest.raises(GrammarError, match="this schema cannot be used"):
        CompiledGrammar(TOKENIZER, lark)


def test_text_that_no_parser_could_nest_is_refused() -> None:
    assert too_deep("start: %json " + '{"items":' * 50_000 + "{}" + "}" * 50_000)


def test_each_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(check, "_reason_against", lambda lark: compiled.append(lark) or "" if "good" in lark else "bad")
    checks = GrammarCheck()
    for _ in range(3):
        assert checks.reason_against('start: "good"') == ""
        assert checks.reason_against('start: "other"') == "bad"
    assert compiled == ['start: "good"']
    monkeypatch.setattr(check, "MAX_REMEMBERED", 1)
    assert checks.reason_against('start: "good again"') == ""
    assert checks.reason_against('start: "good"') == ""
    assert compiled == ['start: "good"', 'start: "good again"', 'start: "good"']


def test_a_grammar_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(check, "_reason_against", lambda lark: str(may_end.wait(30)))
    assert "did not compile in 0.05 s" in GrammarCheck(time_limit_s=0.05).reason_against('start: "x"')
    may_end.set()
