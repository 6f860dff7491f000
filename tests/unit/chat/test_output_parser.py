from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from sparkstral.chat.fold import Fold, FoldedMessage
from sparkstral.chat.output_parser import OutputParser
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.types import (
    Finished,
    FinishReason,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    Usage,
)
from tests.support.chat_cases import MARKERS, load_cases, output_ids

CASES = load_cases("tool_streams") + load_cases("reasoning_streams")


def events_of(
    ids: list[int], tokenizer: ChatTokenizer, *, chunk: int = 1, prefilled_think: bool = False
) -> list[OutputEvent]:
    numbers = itertools.count()
    parser = OutputParser(
        tokenizer, prefilled_think=prefilled_think, new_call_id=lambda: f"id{next(numbers):07}"
    )
    events = [e for start in range(0, len(ids), chunk) for e in parser.feed(ids[start : start + chunk])]
    reason = FinishReason.STOP if ids[-1:] == [2] else FinishReason.LENGTH
    return events + parser.finish(reason, num_prompt_tokens=7, num_cached_tokens=3)


def parsed(output: list[str], tokenizer: ChatTokenizer, **how: Any) -> FoldedMessage:
    fold = Fold()
    fold.add(events_of(output_ids(output, tokenizer), tokenizer, **how))
    return fold.message()


def by_byte(output: list[str]) -> list[int]:
    """The same output with every byte of its text a token of its own (the first 256 ranks are the bytes)."""
    return [
        i
        for piece in output
        for i in ([MARKERS[piece]] if piece in MARKERS else [1000 + byte for byte in piece.encode()])
    ]


@pytest.mark.parametrize("split", ["tokens", "pieces", "bytes", "all in one"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any], split: str, tokenizer: ChatTokenizer) -> None:
    ids = {
        "tokens": case["output_ids"],
        "pieces": output_ids(case["output"], tokenizer),
        "bytes": by_byte(case["output"]),
        "all in one": case["output_ids"],
    }[split]
    fold = Fold()
    fold.add(
        events_of(
            ids,
            tokenizer,
            chunk=len(ids) if split == "all in one" else 1,
            prefilled_think=case.get("prefill") == "[THINK]",
        )
    )
    message, expect = fold.message(), case["expect"]
    assert message.content == expect["content"]
    assert message.reasoning == expect["reasoning"]
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in message.tool_calls]
    assert calls == expect["tool_calls"]
    assert message.finish_reason == expect["finish_reason"]
    assert message.usage is not None
    assert message.usage.num_completion_tokens == len(ids)
    assert (message.usage.num_reasoning_tokens > 0) == bool(expect["reasoning"])


@pytest.mark.parametrize("case", load_cases("anthropic_streams"), ids=lambda case: case["id"])
def test_events_come_in_the_order_of_blocks(case: dict[str, Any], tokenizer: ChatTokenizer) -> None:
    """A protocol that sends blocks one after the other only has to start one when the kind changes."""
    blocks: list[dict[str, Any]] = []
    for event in events_of(case["output_ids"], tokenizer):
        match event:
            case TextDelta(text) | ReasoningDelta(text):
                kind = "text" if isinstance(event, TextDelta) else "thinking"
                if not blocks or blocks[-1]["type"] != kind:
                    blocks.append({"type": kind, kind: ""})
                blocks[-1][kind] += text
            case ToolCallBegin():
                blocks.append({"type": "tool_use", "name": event.name, "input": ""})
            case ToolCallArguments():
                blocks[-1]["input"] += event.delta
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"])
    assert blocks == case["expect_blocks"]


def test_events_of_a_call_come_as_early_as_they_are_certain(tokenizer: ChatTokenizer) -> None:
    parser = OutputParser(tokenizer, new_call_id=lambda: "abcdefghi")
    assert parser.feed([9, *tokenizer.encode("get_time")]) == []
    assert parser.feed([32]) == [ToolCallBegin(0, "abcdefghi", "get_time")]
    assert parser.feed(tokenizer.encode('{"zone":')) == [ToolCallArguments(0, '{"zone":')]
    assert parser.feed(tokenizer.encode(' "CET"}\n')) == [ToolCallArguments(0, ' "CET"}'), ToolCallEnd(0)]
    assert parser.feed([2]) == []
    assert parser.finish(FinishReason.STOP, num_prompt_tokens=5, num_cached_tokens=4) == [
        Finished("tool_calls", Usage(5, parser.num_tokens, 4, 0))
    ]


def test_a_character_is_sent_when_it_is_whole(tokenizer: ChatTokenizer) -> None:
    parser = OutputParser(tokenizer)
    *start, last = [1000 + byte for byte in "🎉".encode()]
    assert [parser.feed([token]) for token in start] == [[], [], []]
    assert parser.feed([last]) == [TextDelta("🎉")]


@pytest.mark.parametrize(
    ("output", "content", "reasoning", "calls"),
    [
        pytest.param(["[ARGS]", "a", "[/THINK]", "b"], "ab", "", [], id="markers that mean nothing here"),
        pytest.param(["[TOOL_CALLS]", "today", "</s>"], "today", "", [], id="a name without [ARGS]"),
        pytest.param(["[TOOL_CALLS]", "[ARGS]", "{}", "</s>"], "{}", "", [], id="no name"),
        pytest.param(
            ["[TOOL_CALLS]", "one", "[TOOL_CALLS]", "two", "[ARGS]", "{}"],
            "one",
            "",
            [("two", "{}")],
            id="a name given up for another",
        ),
        pytest.param(["[TOOL_CALLS]", "now", "[ARGS]", "</s>"], "", "", [("now", "{}")], id="no arguments"),
        pytest.param(["[TOOL_CALLS]", "now", "[ARGS]"], "", "", [("now", "")], id="cut before the arguments"),
        pytest.param(["So: ", "[TOOL_CALLS]", "get_"], "So: ", "", [], id="cut inside the name"),
        pytest.param(
            ["[TOOL_CALLS]", "f", "[ARGS]", '["x", "}"] ', "[TOOL_CALLS]", "g", "[ARGS]", " word ", "</s>"],
            "",
            "",
            [("f", '["x", "}"]'), ("g", "word")],
            id="arguments that are no object",
        ),
        pytest.param(
            ["[TOOL_CALLS]", "f", "[ARGS]", '{"a": }', "</s>"],
            "",
            "",
            [("f", '{"a": }')],
            id="an object that is no JSON",
        ),
        pytest.param(
            ["[TOOL_CALLS]", "f", "[ARGS]", '{"a": "x', "[TOOL_CALLS]", "f", "[ARGS]", "{}", "</s>"],
            "",
            "",
            [("f", '{"a": "x'), ("f", "{}")],
            id="an object that is not closed",
        ),
        pytest.param(
            ["[TOOL_CALLS]", "f", "[ARGS]", r'{"a": "}\"}\\"}', " \nDone.", "</s>"],
            " \nDone.",
            "",
            [("f", r'{"a": "}\"}\\"}')],
            id="braces in strings, and text after a call",
        ),
        pytest.param(
            ["[THINK]", "I call.", "[TOOL_CALLS]", "f", "[ARGS]", "{}", "</s>"],
            "",
            "I call.",
            [("f", "{}")],
            id="a thought that is not closed",
        ),
        pytest.param(
            ["[THINK]", "a", "[THINK]", "b", "[/THINK]", "c"], "c", "ab", [], id="a thought opened twice"
        ),
        pytest.param(["a", "</s>", "b"], "a", "", [], id="text after the end"),
    ],
)
def test_malformed_output(
    output: list[str], content: str, reasoning: str, calls: list[tuple[str, str]], tokenizer: ChatTokenizer
) -> None:
    message = parsed(output, tokenizer)
    assert (message.content, message.reasoning) == (content, reasoning)
    assert [(call.name, call.arguments) for call in message.tool_calls] == calls


def test_other_control_tokens_are_dropped(tokenizer: ChatTokenizer) -> None:
    ids = [3, *tokenizer.encode("Hel"), 10, 999, *tokenizer.encode("lo"), 1]
    fold = Fold()
    fold.add(events_of(ids, tokenizer))
    assert fold.message().content == "Hello"


def test_bytes_that_are_no_character_become_one_replacement_each(tokenizer: ChatTokenizer) -> None:
    fold = Fold()
    fold.add(events_of([1000 + byte for byte in b"a\xffb\xe2\x82"], tokenizer))
    assert fold.message().content == "a\ufffdb\ufffd"


def test_reasoning_tokens_are_those_from_think_to_its_end(tokenizer: ChatTokenizer) -> None:
    ids = [34, *tokenizer.encode("one two three"), 35, *tokenizer.encode("answer"), 2]
    last = events_of(ids, tokenizer)[-1]
    assert isinstance(last, Finished)
    assert last.usage == Usage(7, len(ids), 3, len(tokenizer.encode("one two three")) + 2)


def test_an_aborted_answer_ends_like_a_stopped_one(tokenizer: ChatTokenizer) -> None:
    parser = OutputParser(tokenizer)
    parser.feed(tokenizer.encode("so far"))
    assert parser.finish(FinishReason.ABORTED, num_prompt_tokens=1)[-1] == Finished("stop", Usage(1, 2))


def test_ids_of_calls_are_nine_alphanumerics_and_differ(tokenizer: ChatTokenizer) -> None:
    parser = OutputParser(tokenizer)
    begun = [e for e in parser.feed([9, 1102, 32, 9, 1102, 32]) if isinstance(e, ToolCallBegin)]
    assert len({event.id for event in begun}) == 2
    assert all(len(event.id) == 9 and event.id.isalnum() and event.id.isascii() for event in begun)
