from __future__ import annotations

import pytest

from sparkstral.chat.stop_strings import StopStrings
from sparkstral.types import (
    Failed,
    Failure,
    Finished,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallBegin,
    ToolCallEnd,
    Usage,
)

USAGE = Usage(1, 2)


def run(stop: list[str], *events: OutputEvent | str) -> tuple[list[OutputEvent], str | None]:
    stop_strings = StopStrings(stop)
    given = [TextDelta(event) if isinstance(event, str) else event for event in events]
    return [out for event in given for out in stop_strings.feed([event])], stop_strings.matched


def test_a_stop_string_over_two_deltas_cuts_the_text() -> None:
    assert run(["END"], "one EN", "D two") == ([TextDelta("one ")], "END")


def test_a_possible_beginning_is_held_back_only_as_long_as_it_is_one() -> None:
    assert run(["END"], "a E", "N", "x")[0] == [TextDelta("a "), TextDelta("ENx")]


def test_what_is_held_back_comes_before_the_next_event() -> None:
    end = Finished("stop", USAGE)
    assert run(["END"], "a EN", end) == ([TextDelta("a "), TextDelta("EN"), end], None)


def test_after_a_match_only_the_end_is_passed_on() -> None:
    call = ToolCallBegin(0, "abcdefghi", "f")
    events, matched = run(["."], "a.b", "c", call, ToolCallEnd(0), Finished("tool_calls", USAGE))
    assert (events, matched) == ([TextDelta("a"), Finished("stop", USAGE, ".")], ".")
    failed = Failed(Failure("internal", "broken"))
    assert run(["."], "a.", failed)[0] == [TextDelta("a"), failed]


@pytest.mark.parametrize("splits", [("xabcdy",), tuple("xabcdy"), ("xab", "cdy")])
def test_the_string_that_is_complete_first_counts(splits: tuple[str, ...]) -> None:
    events, matched = run(["abcd", "bc"], *splits)
    assert ("".join(e.text for e in events if isinstance(e, TextDelta)), matched) == ("xa", "bc")
    assert run(["b", "ab"], *splits)[1] == "ab"


def test_reasoning_is_not_searched() -> None:
    assert run(["stop"], ReasoningDelta("stop"), "go")[0] == [ReasoningDelta("stop"), TextDelta("go")]


def test_without_stop_strings_everything_passes_at_once() -> None:
    assert run(["", ""], "a", "b") == ([TextDelta("a"), TextDelta("b")], None)
