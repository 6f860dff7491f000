"""Server-sent events: JSON objects as `data:` lines, for as long as the client listens."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Generic, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sparkstral.api.disconnect import until_disconnect

logger = logging.getLogger(__name__)

E = TypeVar("E")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

# JSON allows these inside a text, but clients that split lines as Python's str.splitlines does would break it
# there.
_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def encode(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """One event; `event` is its name, for the protocols that name theirs."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {text.translate(_LINE_BREAKS)}\n\n".encode()


async def with_pauses(source: AsyncGenerator[E, None], pause_s: float) -> AsyncGenerator[E | None, None]:
    """The events of `source`, and None each time that none has come for `pause_s`. Closes `source`."""
    end = object()
    coming: asyncio.Task[Any] | None = None
    async with aclosing(source):
        try:
            while True:
                if coming is None:
                    coming = asyncio.ensure_future(anext(source, end))
                await asyncio.wait({coming}, timeout=pause_s)
                if not coming.done():
                    yield None
                    continue
                event, coming = coming.result(), None
                if event is end:
                    return
                yield event
        finally:
            if coming is not None:  # a generator that runs cannot be closed
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)


class EventStream(Response, Generic[E]):
    """`first` and then the rest of `source`, each written by `write`; None is a comment, which clients skip.

    `source` is closed when all is sent, when the client has left or when it has read nothing for `reader_timeout_s`,
    which aborts what stands behind it. What a slow reader has not read is bounded: the buffers of its connection, and
    then `source` is not asked for more.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: E | None,
        source: AsyncGenerator[E | None, None],
        write: Callable[[E], bytes],
        headers: Mapping[str, str],
        reader_timeout_s: float,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]  # not known
        self._first = first
        self._source = source
        self._write = write
        self._reader_timeout_s = reader_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._source):
            with suppress(ClientDisconnect):
                await until_disconnect(self._send(send), receive)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send_event(send, self._first)
        async for event in self._source:
            await self._send_event(send, event)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_event(self, send: Send, event: E | None) -> None:
        body = KEEP_ALIVE if event is None else self._write(event)
        try:
            async with asyncio.timeout(self._reader_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError:
            logger.warning("a client has read nothing for %g s; it is given up", self._reader_timeout_s)
            raise ClientDisconnect from None
