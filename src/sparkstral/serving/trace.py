"""The times of one request as its reader has them, and the line that the log gets at its end.

Owns what is measured; must not know how it is shown (api/metrics is told through `Observer`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Protocol

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Told of every request, in the event loop's thread; all times in seconds."""

    def first_token(self, ttft_s: float) -> None: ...

    def more_tokens(self, num_tokens: int, itl_s: float) -> None:
        """`num_tokens` came, `itl_s` after one another on average."""

    def repaired(self, repairs: Sequence[str]) -> None:
        """A message list was taken with these repairs."""

    def ended(self, outcome: str, e2e_s: float) -> None:
        """`outcome` is a finish reason, "aborted", or a failure's code. Comes once for each request."""


class Trace:
    """One request, from its arrival to its one end. Entered around its answer: whoever leaves without having said
    why has aborted it."""

    def __init__(self, request_id: str, num_prompt_tokens: int, arrived_s: float, observer: Observer) -> None:
        """`arrived_s` is of time.monotonic."""
        self._request_id = request_id
        self._num_prompt_tokens = num_prompt_tokens
        self._arrived_s = arrived_s
        self._observer = observer
        self._last_token_s: float | None = None
        self._ttft_s: float | None = None
        self._num_tokens = 0
        self.num_cached_tokens = 0
        self.outcome = "aborted"

    def tokens(self, num_tokens: int) -> None:
        """So many new tokens are there now."""
        if num_tokens == 0:
            return
        now_s = time.monotonic()
        if self._last_token_s is None:
            self._ttft_s = now_s - self._arrived_s
            self._observer.first_token(self._ttft_s)
        else:
            self._observer.more_tokens(num_tokens, (now_s - self._last_token_s) / num_tokens)
        self._last_token_s = now_s
        self._num_tokens += num_tokens

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        e2e_s = time.monotonic() - self._arrived_s
        self._observer.ended(self.outcome, e2e_s)
        fields = {
            "outcome": self.outcome,
            "num_prompt_tokens": self._num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_output_tokens": self._num_tokens,
            "ttft_s": None if self._ttft_s is None else round(self._ttft_s, 4),
            "e2e_s": round(e2e_s, 4),
        }
        logger.info(
            "%s ended (%s): %d + %d tokens, first after %s s, all after %.3f s",
            self._request_id, self.outcome, self._num_prompt_tokens, self._num_tokens,
            "-" if self._ttft_s is None else f"{self._ttft_s:.3f}", e2e_s,
            extra={"request_id": self._request_id, "fields": fields},
        )  # fmt: skip
