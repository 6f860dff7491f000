"""Who may ask, where the server has keys: `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients do.

Owns the comparison, which takes as long for a wrong key as for a right one. Whether the server answers at all is no
secret: probes of its health need no key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sparkstral.api.errors import UnauthorizedError, answer

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/startupz"})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class KeysOnly:
    """Refuses requests without one of `keys`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]  # equally long, whatever the keys are

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        keys = _keys(Headers(scope=scope))
        if any(self._is_known(key) for key in keys):
            await self._app(scope, receive, send)
            return
        told = "The API key is not one of this server's" if keys else "This server asks for an API key"
        error = UnauthorizedError(f"{told}; send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.")
        await answer(scope, error)(scope, receive, send)

    def _is_known(self, key: str) -> bool:
        digest = _digest(key)
        found = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        return any(found)


def _keys(headers: Headers) -> list[str]:
    """What is sent as a key, in either header: a client may fill one of them with a word of its own."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    sent = credentials.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (sent, headers.get("x-api-key", "")) if key]
