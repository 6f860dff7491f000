"""Events → the chat completion object, and → its chunks: the same answer, whole or in pieces.

Owns the names on the wire. Absent keys are left out rather than null, because strict clients take null for a
value; the exceptions are OpenAI's required ones, `content` of a message without text and `finish_reason` of a
chunk. Reasoning goes out under both names that clients read, `reasoning` and `reasoning_content`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkstral.api import sse
from sparkstral.api.errors import FailedError, describe
from sparkstral.chat.fold import FoldedMessage
from sparkstral.types import (
    Failed,
    Finished,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    Usage,
)


@dataclass(frozen=True, slots=True)
class CompletionHead:
    """What every object of one answer repeats."""

    id: str
    created: int  # seconds since 1970
    model: str

    def to_wire(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage_to_wire(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
    }


def completion(head: CompletionHead, answer: FoldedMessage) -> dict[str, Any]:
    """The whole answer. Raises FailedError when it did not come to its end."""
    if answer.failure is not None:
        raise FailedError(answer.failure)
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message |= {"reasoning": answer.reasoning, "reasoning_content": answer.reasoning}
    if answer.tool_calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    result = head.to_wire("chat.completion")
    result["choices"] = [{"index": 0, "message": message, "finish_reason": answer.finish_reason}]
    if answer.usage is not None:
        result["usage"] = usage_to_wire(answer.usage)
    return result


class ChunkWriter:
    """Writes the events of one answer as server-sent chunks, one call an event."""

    def __init__(self, head: CompletionHead, *, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._has_begun = False

    def write(self, event: OutputEvent) -> bytes:
        """The chunks of `event`; b"" when it needs none."""
        match event:
            case TextDelta(text):
                return self._delta({"content": text})
            case ReasoningDelta(text):
                return self._delta({"reasoning": text, "reasoning_content": text})
            case ToolCallBegin(index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return self._delta({"tool_calls": [call]})
            case ToolCallArguments(index, delta):
                return self._delta({"tool_calls": [{"index": index, "function": {"arguments": delta}}]})
            case ToolCallEnd():
                return b""
            case Finished(reason, usage):
                end = self._delta({}, reason)
                if self._include_usage:
                    end += self._chunk([], usage=usage_to_wire(usage))
                return end + sse.DONE
            case Failed(failure):
                _, body, _ = describe(FailedError(failure))
                return sse.encode(body)

    def _delta(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        begin = b""
        if not self._has_begun:
            self._has_begun = True
            begin = self._delta({"role": "assistant", "content": ""})
        return begin + self._chunk([{"index": 0, "delta": delta, "finish_reason": finish_reason}])

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return sse.encode(self._head.to_wire("chat.completion.chunk") | {"choices": choices} | more)
