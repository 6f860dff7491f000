"""Responses that were answered, for `previous_response_id` and for GET: in memory, bounded, the oldest forgotten.

Must not know a wire form beyond JSON objects. For one event loop.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from sparkstral.types import ChatMessage, ImagePart

MAX_BYTES = 64 << 20  # some hundred long talks; lost with the process


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`messages` is all that was said up to and with the response, without its instructions."""

    response: dict[str, Any]
    messages: tuple[ChatMessage, ...]
    num_bytes: int


class ResponseStore:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, dict[str, Any]] = {}  # of all outputs, by their ids

    def add(self, response: dict[str, Any], messages: tuple[ChatMessage, ...]) -> None:
        """Keep a response, instead of what was kept of it before, unless it alone is more than the store may hold;
        forget the ones unused for longest."""
        self.delete(response["id"])
        num_bytes = len(json.dumps(response)) + sum(_num_bytes(message) for message in messages)
        if num_bytes > self._max_bytes:
            return
        self._responses[response["id"]] = StoredResponse(response, messages, num_bytes)
        self._num_bytes += num_bytes
        self._items.update((item["id"], item) for item in response.get("output", ()))
        while self._num_bytes > self._max_bytes:
            self.delete(next(iter(self._responses)))

    def get(self, response_id: str) -> StoredResponse | None:
        """The response, which counts as used now."""
        stored = self._responses.get(response_id)
        if stored is not None:
            self._responses.move_to_end(response_id)
        return stored

    def item(self, item_id: str) -> dict[str, Any] | None:
        """An item of a response's output."""
        return self._items.get(item_id)

    def delete(self, response_id: str) -> bool:
        """Whether it was there."""
        stored = self._responses.pop(response_id, None)
        if stored is not None:
            self._num_bytes -= stored.num_bytes
            for item in stored.response.get("output", ()):
                self._items.pop(item["id"], None)
        return stored is not None


def _num_bytes(message: ChatMessage) -> int:
    """About what a message takes: Python's own part and up to 4 bytes a character."""
    image_bytes = sum(len(part.data) for part in message.parts if isinstance(part, ImagePart))
    num_characters = sum(len(part.text) for part in message.parts if not isinstance(part, ImagePart))
    num_characters += sum(len(call.arguments) + len(call.name) for call in message.tool_calls)
    return 500 + 4 * num_characters + image_bytes
