"""The engine thread's only ear.

Owns the queue of messages to the engine; must not know what they ask for.
"""

from __future__ import annotations

import queue

from sparkstral.engine.messages import Shutdown, ToEngine


class Inbox:
    """Anyone may `put` or `wake`; the engine thread alone takes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self.is_closing = False  # a Shutdown has come, though perhaps not been read: loading looks here

    def put(self, message: ToEngine) -> None:
        if isinstance(message, Shutdown):
            self.is_closing = True
        self._queue.put(message)

    def wake(self) -> None:
        """End a `take` that waits, without a message."""
        self._queue.put(None)

    def take(self, timeout_s: float) -> list[ToEngine]:
        """All messages that are there, in order; waits up to `timeout_s` for a first one or for `wake`."""
        messages: list[ToEngine] = []
        try:
            item = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
            while True:
                if item is not None:
                    messages.append(item)
                item = self._queue.get_nowait()
        except queue.Empty:
            return messages
