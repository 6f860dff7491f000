"""Events → the stream of a messages answer, and the message object itself: the same answer, in pieces or whole.

Owns Anthropic's names and the order of its events: message_start; for each block content_block_start, deltas of its own
kind, content_block_stop; message_delta; message_stop. No block is empty. A thinking block ends with a signature, since
clients send it back and some insist on one; it is a digest of the thought, proves nothing and is not checked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from sparkstral.api import sse
from sparkstral.api.errors import FailedError, describe, to_anthropic
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

Event = dict[str, Any]

# For each type of block: the type of its deltas, and the key of their text.
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


@dataclass(frozen=True, slots=True)
class MessageHead:
    """What is known before the answer. `max_tokens` is the client's limit, which the context may undercut."""

    id: str
    model: str
    num_prompt_tokens: int
    max_tokens: int

    def to_wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Usage(self.num_prompt_tokens, 0)),
        }


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


class MessageBuilder:
    """Follows the events of one answer; `message` is what they have made so far."""

    def __init__(self, head: MessageHead) -> None:
        self.message = head.to_wire()
        self._max_tokens = head.max_tokens
        self._has_begun = False
        self._open: Event | None = None  # the block that is being written
        self._texts: list[str] = []  # its pieces

    def feed(self, event: OutputEvent) -> list[Event]:
        """The stream's events of one event."""
        events: list[Event] = []
        if not self._has_begun and not isinstance(event, Failed):
            self._has_begun = True
            events += [{"type": "message_start", "message": {**self.message, "content": []}}, {"type": "ping"}]
        match event:
            case TextDelta(text):
                events += self._delta({"type": "text", "text": ""}, text)
            case ReasoningDelta(text):
                events += self._delta({"type": "thinking", "thinking": "", "signature": ""}, text)
            case ToolCallBegin(_, call_id, name):
                events += self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case ToolCallArguments(_, delta):
                events += self._delta({"type": "tool_use"}, delta)
            case ToolCallEnd():
                events += self._end()
            case Finished(_, usage):
                events += self._end()
                stop = _stop(event, self._max_tokens)
                self.message |= {**stop, "usage": _usage(usage)}
                events += [{"type": "message_delta", "delta": stop, "usage": _usage(usage)}, {"type": "message_stop"}]
            case Failed(failure):
                status, body, _ = describe(FailedError(failure))
                events.append(to_anthropic(body, status))
        return events

    def write(self, event: OutputEvent) -> bytes:
        """The same as server-sent events."""
        return b"".join(sse.encode(item, item["type"]) for item in self.feed(event))

    def _at(self, kind: str, **content: Any) -> Event:
        """An event about the open block."""
        return {"type": kind, "index": len(self.message["content"]), **content}

    def _delta(self, block: Event, text: str) -> list[Event]:
        """`block` is what is begun if no such block is open."""
        kind = block["type"]
        begin = self._begin(block) if self._open is None or self._open["type"] != kind else []
        self._texts.append(text)
        delta, key = _DELTAS[kind]
        return [*begin, self._at("content_block_delta", delta={"type": delta, key: text})]

    def _begin(self, block: Event) -> list[Event]:
        end = self._end()
        self._open = block
        return [*end, self._at("content_block_start", content_block=dict(block))]

    def _end(self) -> list[Event]:
        """Ends the open block, if there is one."""
        if self._open is None:
            return []
        block, text, events = self._open, "".join(self._texts), []
        match block["type"]:
            case "tool_use":
                block["input"] = _input(text)
            case "thinking":
                block |= {"thinking": text, "signature": _signature(text)}
                delta = {"type": "signature_delta", "signature": block["signature"]}
                events.append(self._at("content_block_delta", delta=delta))
            case _:
                block["text"] = text
        events.append(self._at("content_block_stop"))
        self.message["content"].append(block)
        self._open, self._texts = None, []
        return events


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; of a text that was cut, what is whole of it."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
