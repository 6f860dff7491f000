"""Events → the message object, and → the stream of a messages answer: the same answer, whole or in pieces.

Owns Anthropic's names and the order of its events: message_start; for each block content_block_start, deltas of its own
kind, content_block_stop; message_delta; message_stop. No block is empty. A thinking block ends with a signature, since
clients send it back and some insist on one; it is a digest of the thought, proves nothing and is not checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from sparkstral.api import sse
from sparkstral.api.errors import FailedError, describe, to_anthropic
from sparkstral.types import (
    Failed,
    Failure,
    Finished,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    Usage,
)

_DELTA_KEYS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


@dataclass(frozen=True, slots=True)
class MessageHead:
    """What is known before the answer. `max_tokens` is the client's limit, which the context may undercut."""

    id: str
    model: str
    num_prompt_tokens: int
    max_tokens: int

    def to_wire(self, **end: Any) -> dict[str, Any]:
        start: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Usage(self.num_prompt_tokens, 0)),
        }
        return start | end


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic counts the prompt in two parts: what was read from the cache, and the rest."""
    return {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.num_reasoning_tokens},
    }


def _stop(event: Finished, max_tokens: int) -> dict[str, Any]:
    if event.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": event.stop_string}
    if event.reason == "length":
        is_clients = event.usage.num_completion_tokens >= max_tokens
        reason = "max_tokens" if is_clients else "model_context_window_exceeded"
    else:
        reason = "tool_use" if event.reason == "tool_calls" else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _signature(thinking: str) -> str:
    return hashlib.sha256(thinking.encode("utf-8", "surrogatepass")).hexdigest()


class MessageWriter:
    """Writes the events of one answer as server-sent events, one call an event."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._has_begun = False
        self._index = -1
        self._open: str | None = None  # the type of the block that is open
        self._thinking: list[str] = []

    def write(self, event: OutputEvent) -> bytes:
        """The events of `event`; b"" when it needs none."""
        begin = b""
        if not self._has_begun and not isinstance(event, Failed):
            self._has_begun = True
            begin = _event("message_start", message=self._head.to_wire()) + _event("ping")
        return begin + self._write(event)

    def _write(self, event: OutputEvent) -> bytes:
        match event:
            case TextDelta(text):
                return self._delta("text", {"text": ""}, "text_delta", text)
            case ReasoningDelta(text):
                self._thinking.append(text)
                return self._delta("thinking", {"thinking": "", "signature": ""}, "thinking_delta", text)
            case ToolCallBegin(_, call_id, name):
                return self._begin("tool_use", {"id": call_id, "name": name, "input": {}})
            case ToolCallArguments(_, delta):
                return self._delta("tool_use", {}, "input_json_delta", delta)
            case ToolCallEnd():
                return self._end()
            case Finished():
                end = self._end()
                usage = _usage(event.usage)
                end += _event("message_delta", delta=_stop(event, self._head.max_tokens), usage=usage)
                return end + _event("message_stop")
            case Failed(failure):
                _, body, _ = describe(FailedError(failure))
                return sse.encode(to_anthropic(body), "error")

    def _delta(self, block: str, start: Mapping[str, Any], kind: str, value: str) -> bytes:
        begin = b"" if self._open == block else self._begin(block, start)
        delta = {"type": kind, _DELTA_KEYS[kind]: value}
        return begin + _event("content_block_delta", index=self._index, delta=delta)

    def _begin(self, block: str, start: Mapping[str, Any]) -> bytes:
        end = self._end()
        self._open = block
        self._index += 1
        return end + _event("content_block_start", index=self._index, content_block={"type": block, **start})

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        end = b""
        if self._open == "thinking":
            signature = _signature("".join(self._thinking))
            self._thinking.clear()
            delta = {"type": "signature_delta", "signature": signature}
            end = _event("content_block_delta", index=self._index, delta=delta)
        self._open = None
        return end + _event("content_block_stop", index=self._index)


def _event(kind: str, **content: Any) -> bytes:
    return sse.encode({"type": kind, **content}, kind)


class MessageFold:
    """Collects the events of one answer into the message object: blocks in their order, as the stream has them."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._blocks: list[tuple[str, list[str], ToolCallBegin | None]] = []  # type, texts, the call's name and id
        self._is_open = False
        self._end: Finished | Failure | None = None

    def add(self, event: OutputEvent) -> None:
        match event:
            case TextDelta(text):
                self._add("text", text)
            case ReasoningDelta(text):
                self._add("thinking", text)
            case ToolCallBegin():
                self._blocks.append(("tool_use", [], event))
                self._is_open = True
            case ToolCallArguments(_, delta):
                self._add("tool_use", delta)
            case ToolCallEnd():
                self._is_open = False
            case Finished():
                self._end = event
            case Failed(failure):
                self._end = failure

    def _add(self, block: str, text: str) -> None:
        if not self._is_open or self._blocks[-1][0] != block:
            self._blocks.append((block, [], None))
            self._is_open = True
        self._blocks[-1][1].append(text)

    def message(self) -> dict[str, Any]:
        """The whole answer. Raises FailedError when it did not come to its end."""
        if not isinstance(self._end, Finished):
            raise FailedError(self._end or Failure("internal", "The answer has no end."))
        content = [_block(block, "".join(texts), call) for block, texts, call in self._blocks]
        return self._head.to_wire(
            content=content, usage=_usage(self._end.usage), **_stop(self._end, self._head.max_tokens)
        )


def _block(block: str, text: str, call: ToolCallBegin | None) -> dict[str, Any]:
    if call is not None:
        return {"type": block, "id": call.id, "name": call.name, "input": _input(text)}
    if block == "thinking":
        return {"type": block, "thinking": text, "signature": _signature(text)}
    return {"type": block, "text": text}


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; of a text that was cut, what is whole of it."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
