"""How many requests may be in flight: a bounded number, so that waiting stays short and memory bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparkstral.errors import OverloadedError

RETRY_AFTER_S = 10  # about the length of one answer: a slot is likely to be free by then


class Admission:
    """Counts requests from the door to their last event, waiting ones included. For one event loop."""

    def __init__(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.num_in_flight = 0
        self.num_refused = 0

    @contextmanager
    def slot(self, number: int = 1) -> Iterator[None]:
        """`number` places while the block runs. Raises OverloadedError when so many are not free."""
        if self.num_in_flight + number > self.max_in_flight:
            self.num_refused += 1
            raise OverloadedError(
                f"{self.num_in_flight:,} requests are in flight, which is all that this server takes. "
                f"Ask again in {RETRY_AFTER_S} s, or send fewer at once.",
                RETRY_AFTER_S,
            )
        self.num_in_flight += number
        try:
            yield
        finally:
            self.num_in_flight -= number
