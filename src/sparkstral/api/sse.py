"""Server-sent events: JSON objects as `data:` lines, for as long as the client listens."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Generic, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sparkstral.api.disconnect import until_disconnect

E = TypeVar("E")

DONE = b"data: [DONE]\n\n"

# JSON allows these inside a text, but clients that split lines as Python's str.splitlines does would break it
# there.
_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def encode(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """One event; `event` is its name, for the protocols that name theirs."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {text.translate(_LINE_BREAKS)}\n\n".encode()


class EventStream(Response, Generic[E]):
    """`first` and then the rest of `source`, each written by `write`.

    `source` is closed when all is sent or when the client has left, which aborts what stands behind it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: E,
        source: AsyncGenerator[E, None],
        write: Callable[[E], bytes],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]  # not known
        self._first = first
        self._source = source
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._source):
            with suppress(ClientDisconnect):
                await until_disconnect(self._send(send), receive)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._write(self._first), "more_body": True})
        async for event in self._source:
            await send({"type": "http.response.body", "body": self._write(event), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
