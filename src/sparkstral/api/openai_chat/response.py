"""Events → the chat completion object, and → its chunks: the same answer, whole or in pieces.

Owns the names on the wire. Absent keys are left out rather than null, because strict clients take null for a
value; the exceptions are OpenAI's required ones, `content` of a message without text and `finish_reason` of a
chunk. Reasoning goes out under both names that clients read, `reasoning` and `reasoning_content`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    TextLogprob,
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


def logprobs_to_wire(logprobs: Sequence[TextLogprob]) -> dict[str, Any]:
    """Of the answer's text; reasoning and calls have none."""
    content = [
        {**_token(item.token, item.logprob), "top_logprobs": [_token(*top) for top in item.top]} for item in logprobs
    ]
    return {"content": content, "refusal": None}


def _token(token: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": token.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(token)}


def completion(head: CompletionHead, answers: Sequence[FoldedMessage], *, with_logprobs: bool) -> dict[str, Any]:
    """The whole answers, each of which has come to its end."""
    result = head.to_wire("chat.completion")
    result["choices"] = [_choice(index, answer, with_logprobs) for index, answer in enumerate(answers)]
    result["usage"] = usage_to_wire(total_usage([answer.usage for answer in answers if answer.usage is not None]))
    return result


def _choice(index: int, answer: FoldedMessage, with_logprobs: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message |= {"reasoning": answer.reasoning, "reasoning_content": answer.reasoning}
    if answer.tool_calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": answer.finish_reason}
    if with_logprobs:
        choice["logprobs"] = logprobs_to_wire(answer.logprobs)
    return choice


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Of several answers to one prompt, which is counted once."""
    return Usage(
        num_prompt_tokens=usages[0].num_prompt_tokens,
        num_completion_tokens=sum(usage.num_completion_tokens for usage in usages),
        num_cached_tokens=usages[0].num_cached_tokens,
        num_reasoning_tokens=sum(usage.num_reasoning_tokens for usage in usages),
    )


class ChunkWriter:
    """Writes the events of `number` answers as server-sent chunks, one call an event."""

    def __init__(self, head: CompletionHead, *, include_usage: bool, number: int = 1) -> None:
        self._head = head
        self._include_usage = include_usage
        self._number = number
        self._begun: set[int] = set()
        self._usages: list[Usage] = []

    def write(self, numbered: tuple[int, OutputEvent]) -> bytes:
        """The chunks of an event and its answer's number; b"" when it needs none. All answers have one end."""
        index, event = numbered
        match event:
            case TextDelta(text, logprobs):
                return self._delta(index, {"content": text}, logprobs=logprobs)
            case ReasoningDelta(text):
                return self._delta(index, {"reasoning": text, "reasoning_content": text})
            case ToolCallBegin(call_index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": call_index, "id": call_id, "type": "function", "function": function}
                return self._delta(index, {"tool_calls": [call]})
            case ToolCallArguments(call_index, delta):
                return self._delta(index, {"tool_calls": [{"index": call_index, "function": {"arguments": delta}}]})
            case ToolCallEnd():
                return b""
            case Finished(reason, usage):
                self._usages.append(usage)
                end = self._delta(index, {}, finish_reason=reason)
                if len(self._usages) < self._number:
                    return end
                if self._include_usage:
                    end += self._chunk([], usage=usage_to_wire(total_usage(self._usages)))
                return end + sse.DONE
            case Failed(failure):
                _, body, _ = describe(FailedError(failure))
                return sse.encode(body)

    def _delta(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: Sequence[TextLogprob] = (),
    ) -> bytes:
        begin = b""
        if index not in self._begun:
            self._begun.add(index)
            begin = self._delta(index, {"role": "assistant", "content": ""})
        told = {"logprobs": logprobs_to_wire(logprobs)} if logprobs else {}
        return begin + self._chunk([{"index": index, "delta": delta, **told, "finish_reason": finish_reason}])

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return sse.encode(self._head.to_wire("chat.completion.chunk") | {"choices": choices} | more)
