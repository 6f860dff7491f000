from __future__ import annotations

import json
from typing import Any

import pytest

from sparkstral.chat.grammar import banned_token_ids, grammar_for
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.errors import RequestError
from sparkstral.structured.check import GrammarCheck
from sparkstral.types import ChatMessage, ChatRequest, ResponseFormat, TextPart, Tool, ToolChoice
from tests.support.chat_cases import load_cases, output_ids, response_format, tool, tool_choice
from tests.support.matcher import allows

ASK = (ChatMessage("user", (TextPart("When is high water?"),)),)
CHECK = GrammarCheck()
TIDE = Tool("tide_table", "Times of high and low water", {"type": "object"})
CALL = ["[TOOL_CALLS]", "tide_table", "[ARGS]", '{"harbour": "Riga"}']


def can_be_written(request: ChatRequest, output: list[str], tokenizer: ChatTokenizer, **prompt: bool) -> bool:
    ids = output_ids(output, tokenizer)
    grammar = grammar_for(request, CHECK, **prompt)
    return not set(ids) & set(banned_token_ids(request)) and (grammar is None or allows(grammar, ids))


@pytest.mark.parametrize("case", load_cases("tool_grammar"), ids=lambda case: case["id"])
def test_tool_case(case: dict[str, Any], tokenizer: ChatTokenizer) -> None:
    request = ChatRequest(
        messages=ASK,
        tools=tuple(map(tool, case["tools"])),
        tool_choice=tool_choice(case["tool_choice"]),
        parallel_tool_calls=case["parallel_tool_calls"],
        reasoning_effort=case["effort"],
    )
    for output in case["accept"]:
        assert can_be_written(request, output, tokenizer), output
    for output in case["reject"]:
        assert not can_be_written(request, output, tokenizer), output


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}], ids=str)
@pytest.mark.parametrize("case", load_cases("structured_output"), ids=lambda case: case["id"])
def test_json_case(case: dict[str, Any], layout: dict[str, Any], tokenizer: ChatTokenizer) -> None:
    request = ChatRequest(ASK, response_format=response_format(case["mode"], case["schema"]))

    def can_be_json(text: str) -> bool:
        return can_be_written(request, [text, "</s>"], tokenizer)

    for instance in case["valid"]:
        assert can_be_json(json.dumps(instance, ensure_ascii=False, **layout)), instance
    for instance in case["invalid"]:
        assert not can_be_json(json.dumps(instance, ensure_ascii=False, **layout)), instance
    for text in case["invalid_text"]:
        assert not can_be_json(text), text


def test_no_grammar_when_nothing_is_asked_for() -> None:
    assert grammar_for(ChatRequest(ASK, reasoning_effort="high"), CHECK) is None
    assert grammar_for(ChatRequest(ASK, tools=(TIDE,), tool_choice=ToolChoice("none")), CHECK) is None


def test_calls_are_banned_when_there_is_no_tool_to_call() -> None:
    assert banned_token_ids(ChatRequest(ASK)) == (9,)
    assert banned_token_ids(ChatRequest(ASK, tools=(TIDE,), tool_choice=ToolChoice("none"))) == (9,)
    assert banned_token_ids(ChatRequest(ASK, tools=(TIDE,))) == ()


THOUGHT = ["[THINK]", "Hm.\n", "[/THINK]"]
JSON = ResponseFormat("json_object")


@pytest.mark.parametrize(
    ("fields", "accept", "reject"),
    [
        pytest.param(
            {"tools": (TIDE,), "reasoning_effort": "high"},
            [["Six."], [*THOUGHT, "Six."], [*THOUGHT, *CALL, *CALL], [*THOUGHT, "Look:", *CALL], CALL, []],
            [["Six.", *THOUGHT], [*CALL, "Six."], ["[THINK]", "Hm"], ["[/THINK]", "Six."]],
            id="thinking is free with effort high",
        ),
        pytest.param(
            {"tools": (TIDE,)}, [["Six."], CALL], [[*THOUGHT, "Six."]], id="no thinking with effort none"
        ),
        pytest.param(
            {"tools": (TIDE,)},
            [[*CALL, *CALL]],
            [["[TOOL_CALLS]", "other", "[ARGS]", "{}"], ["[TOOL_CALLS]", "tide", "[ARGS]", "{}"]],
            id="only tools that are offered",
        ),
        pytest.param(
            {"tools": (TIDE,), "tool_choice": ToolChoice("required"), "reasoning_effort": "high"},
            [CALL, [*THOUGHT, *CALL], [*CALL, *CALL]],
            [["Look:", *CALL], THOUGHT, [*THOUGHT, "Six."]],
            id="required with thinking",
        ),
        pytest.param(
            {"response_format": JSON, "reasoning_effort": "high"},
            [["{}"], [*THOUGHT, '{"a": 1}']],
            [["Six."], [*THOUGHT, "Six."], [*THOUGHT, *CALL], THOUGHT],
            id="JSON with thinking",
        ),
        pytest.param(
            {"response_format": JSON, "tools": (TIDE,)},
            [["{}"], CALL],
            [["Six."], ["{}", *CALL], ["Look:", *CALL]],
            id="JSON or a call",
        ),
        pytest.param(
            {"response_format": JSON, "tools": (TIDE,), "tool_choice": ToolChoice("required")},
            [CALL],
            [["{}"]],
            id="a required call comes before the JSON",
        ),
        pytest.param(
            {
                "tools": (
                    TIDE,
                    Tool("tide", "", {}, strict=True),
                    Tool("tides", "", {"properties": {}}, strict=True),
                )
            },
            [
                ["[TOOL_CALLS]", "tide", "[ARGS]", "{}"],
                ["[TOOL_CALLS]", "tides", "[ARGS]", '{"a": 1}', *CALL],
            ],
            [["[TOOL_CALLS]", "tide", "[ARGS]", '{"a": 1}'], ["[TOOL_CALLS]", "tides", "[ARGS]", '"a"']],
            id="strict and loose tools beside each other",
        ),
        pytest.param(
            {"response_format": JSON},
            [['{"a":' + "\n" + " " * 32 + "1}"], ['{ "a" : 1 }'], ['{"a": \r\n\t1}']],
            [['{"a":' + "\n" + " " * 33 + "1}"], ['{"a":  1}'], ['{"a":\n\n1}'], ['{"a": 1} '], ['{"a": 1}\n']],
            id="white space has an end",
        ),
        pytest.param(
            {"response_format": ResponseFormat("json_schema", {"const": {"a": [1, None]}})},
            [['{"a": [1, null]}'], ['{\n  "a": [\n    1,\n    null\n  ]\n}']],
            [['{"a":  [1, null]}'], ['{"a":\n\n[1, null]}'], ['{"a": [1,' + "\n" + " " * 33 + "null]}"]],
            id="white space has an end in constants",
        ),
        pytest.param(
            {"tools": (Tool("tide", "", {"type": "object", "properties": {"a": {"$ref": "#"}}}, strict=True),)},
            [["[TOOL_CALLS]", "tide", "[ARGS]", '{"a": {\n"a": {}}}']],
            [["[TOOL_CALLS]", "tide", "[ARGS]", text] for text in ('{"a": {\n\n}}', '{"a": {  }}', '{"a": {}\n\n}')],
            id="white space has an end in what refers to itself",
        ),
    ],
)
def test_what_can_be_written(
    fields: dict[str, Any], accept: list[list[str]], reject: list[list[str]], tokenizer: ChatTokenizer
) -> None:
    request = ChatRequest(ASK, **fields)
    for output in accept:
        assert can_be_written(request, [*output, "</s>"], tokenizer), output
    for output in reject:
        assert not can_be_written(request, [*output, "</s>"], tokenizer), output


def test_a_prefilled_thought_must_be_closed(tokenizer: ChatTokenizer) -> None:
    request = ChatRequest(ASK, response_format=JSON, reasoning_effort="high")
    assert can_be_written(request, ["Hm.", "[/THINK]", "{}", "</s>"], tokenizer, prefilled_think=True)
    assert can_be_written(request, ["[/THINK]", "{}", "</s>"], tokenizer, prefilled_think=True)
    assert not can_be_written(request, ["{}", "</s>"], tokenizer, prefilled_think=True)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {"type": "string"}}, "Unimplemented keys"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "Unsatisfiable schema"),
        ({"$ref": "https://example.org/boat.json"}, "not present in a registry"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(
    schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        grammar_for(ChatRequest(ASK, response_format=ResponseFormat("json_schema", schema, strict=True)), CHECK)
    assert refused.value.param == "response_format"
    arguments = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    tool = Tool("f", "", arguments, strict=True, parameters_place="tools[1].function.parameters")
    with pytest.raises(RequestError, match=reason) as refused:
        grammar_for(ChatRequest(ASK, tools=(TIDE, tool)), CHECK)
    assert refused.value.param == "tools[1].function.parameters"
    assert grammar_for(ChatRequest(ASK, tools=(Tool("f", "", arguments),)), CHECK) is not None


def test_a_schema_that_is_too_large_is_refused() -> None:
    schema = {"enum": [f"value {i}" for i in range(100_000)]}
    with pytest.raises(RequestError, match=r"response_format: .* too big"):
        grammar_for(ChatRequest(ASK, response_format=ResponseFormat("json_schema", schema)), CHECK)
