from __future__ import annotations

import json
from typing import Any

import pytest

from sparkstral.chat.grammar import banned_token_ids, grammar_for
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, ChatRequest, ResponseFormat, TextPart, Tool, ToolChoice
from tests.support.chat_cases import load_cases, output_ids, response_format, tool, tool_choice
from tests.support.matcher import allows

ASK = (ChatMessage("user", (TextPart("When is high water?"),)),)
TIDE = Tool("tide_table", "Times of high and low water", {"type": "object"})
CALL = ["[TOOL_CALLS]", "tide_table", "[ARGS]", '{"harbour": "Riga"}']


def can_be_written(request: ChatRequest, output: list[str], tokenizer: ChatTokenizer, **prompt: bool) -> bool:
    ids = output_ids(output, tokenizer)
    grammar = grammar_for(request, **prompt)
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
