"""Events folded into one message: the answer that is not streamed is the stream, put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sparkstral.types import (
    Failed,
    Failure,
    Finished,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    TextLogprob,
    ToolCall,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    Usage,
)


@dataclass(frozen=True, slots=True)
class FoldedMessage:
    """A whole answer. Once the stream has ended either `finish_reason` and `usage` or `failure` is set."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    usage: Usage | None = None
    stop_string: str | None = None  # the client's, if one of them ended the answer
    failure: Failure | None = None
    logprobs: tuple[TextLogprob, ...] = ()  # of the content's tokens, if they were asked for


class Fold:
    """Collects the events of one sequence."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._logprobs: list[TextLogprob] = []
        self._calls: list[ToolCallBegin] = []
        self._arguments: list[list[str]] = []
        self._end: Finished | Failed | None = None

    def add(self, events: Iterable[OutputEvent]) -> None:
        for event in events:
            match event:
                case TextDelta(text, logprobs):
                    self._content.append(text)
                    self._logprobs += logprobs
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case ToolCallBegin():
                    self._calls.append(event)
                    self._arguments.append([])
                case ToolCallArguments(index, delta):
                    self._arguments[index].append(delta)
                case ToolCallEnd():
                    pass
                case Finished() | Failed():
                    self._end = event

    def message(self) -> FoldedMessage:
        """The message so far."""
        return FoldedMessage(
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(
                ToolCall(call.id, call.name, "".join(arguments))
                for call, arguments in zip(self._calls, self._arguments, strict=True)
            ),
            finish_reason=self._end.reason if isinstance(self._end, Finished) else None,
            usage=self._end.usage if isinstance(self._end, Finished) else None,
            stop_string=self._end.stop_string if isinstance(self._end, Finished) else None,
            logprobs=tuple(self._logprobs),
            failure=self._end.failure if isinstance(self._end, Failed) else None,
        )
