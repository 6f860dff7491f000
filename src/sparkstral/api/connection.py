"""A connection's patience: the head of a request has to be complete in time, be it the first or a later one.

Owns what uvicorn leaves open: its own timer runs only between an answer and the next byte. Must not know what is asked.
A client that closes its sending side counts as gone, as a client that has left looks the same.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 30.0  # a head has one or two packets; clients that open connections beforehand open them again


class PatientConnection(H11Protocol):
    """uvicorn's connection, closed when no request's head has come for `head_timeout_s`."""

    head_timeout_s = HEAD_TIMEOUT_S
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        """The time begins with the connection or with a head's first bytes, and ends with the head."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
