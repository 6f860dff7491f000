"""Who may ask, as far as browsers are concerned: pages of other sites must not use a server that is meant for its
own machine.

Owns the two ways in which they could. A page whose name is made to point to 127.0.0.1 (DNS rebinding) is told by
the Host that it asks for; a page that posts without asking first (no CORS preflight) is told by its Origin. CORS
itself stays off, so what is declared as JSON gets no further than the preflight. Must not know what is asked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sparkstral.api.errors import ForbiddenHostError, answer

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` can be reached from its own machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_foreign_page(headers: Headers, welcome: Sequence[str] = ()) -> bool:
    """Whether the request comes from a page that this server has not served, nor one of the `welcome` origins (* is
    any). Programs send no Origin."""
    origin = headers.get("origin")
    if origin in welcome or "*" in welcome:
        return False
    return origin is not None and origin.rpartition("//")[2] != headers.get("host")


class LoopbackNamesOnly:
    """Refuses requests for other names than this machine's own; a request without a Host is no browser's."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        """`host` is the loopback address on which the server listens."""
        self._app = app
        self._host = host
        self._names = LOOPBACK_NAMES | {f"[{host}]" if ":" in host else host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            asked = Headers(scope=scope).get("host", "")
            if asked and _without_port(asked) not in self._names:
                response = answer(
                    scope,
                    ForbiddenHostError(
                        f"This server listens on {self._host} for its own machine, and was asked as {asked[:100]!r}. "
                        "Ask it as localhost or 127.0.0.1 (a proxy can set the Host header so), or start it with "
                        "--host 0.0.0.0, which lets the network in under any name."
                    ),
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class OriginForm:
    """Takes a request whose target is a whole URL, as clients write it to a proxy, for its path: RFC 9112 3.2.2."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(("http://", "https://")):
            path = "/" + scope["path"].split("/", 3)[3] if scope["path"].count("/") > 2 else "/"
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")
