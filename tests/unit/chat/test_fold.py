from __future__ import annotations

from sparkstral.chat.fold import Fold, FoldedMessage
from sparkstral.types import (
    Failed,
    Failure,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    Usage,
)


def test_fold_joins_what_belongs_together() -> None:
    fold, usage = Fold(), Usage(3, 9, 1, 2)
    fold.add(
        [ReasoningDelta("h"), ReasoningDelta("m"), TextDelta("Let "), TextDelta("me."), ReasoningDelta("!")]
    )
    fold.add([ToolCallBegin(0, "aaaaaaaaa", "f"), ToolCallArguments(0, '{"a"'), ToolCallArguments(0, ": 1}")])
    fold.add(
        [ToolCallEnd(0), ToolCallBegin(1, "bbbbbbbbb", "g"), ToolCallEnd(1), Finished("tool_calls", usage)]
    )
    calls = (ToolCall("aaaaaaaaa", "f", '{"a": 1}'), ToolCall("bbbbbbbbb", "g", ""))
    assert fold.message() == FoldedMessage("Let me.", "hm!", calls, "tool_calls", usage)


def test_a_failure_keeps_what_came_before_it() -> None:
    fold, failure = Fold(), Failure("engine_dead", "gone")
    fold.add([TextDelta("so far"), Failed(failure)])
    assert fold.message() == FoldedMessage("so far", "", (), failure=failure)
