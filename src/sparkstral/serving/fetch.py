"""Images that a request names by their URL, fetched without becoming anybody's way into this network.

Owns which hosts are asked: those that the server's owner has named, at addresses of the public internet alone. A name
is resolved once, all its addresses are checked, and the connection goes to one of those that were; a redirect is a new
request to which all of this applies. Must not know images.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import httpx

from sparkstral.chat.images import MAX_BYTES
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, ImagePart
from sparkstral.units import format_bytes

TIMEOUT_S = 15.0  # for all of an image, redirects included: a request waits for it
MAX_REDIRECTS = 3
MAX_AT_ONCE = 4  # of a request's images
_PORTS = {"http": 80, "https": 443}
# Addresses of these lead to others that they hold inside.
_TUNNELS = [ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")]

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class _Refused(Exception):
    """Why an image is not fetched, in words that follow its place."""


async def resolve_host(host: str, port: int) -> list[str]:
    """The addresses of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def is_public(text: str) -> bool:
    """Whether an address is of the public internet, and holds no other inside."""
    address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif any(address in tunnel for tunnel in _TUNNELS):
            return False
    return address.is_global and not address.is_multicast


class ImageFetcher:
    """`allowed_hosts` are names, `*.example.com` for all below one, or `*`."""

    def __init__(
        self,
        allowed_hosts: Sequence[str],
        resolve: Resolve = resolve_host,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._allowed = tuple(host.lower().rstrip(".") for host in allowed_hosts)
        self._resolve = resolve
        self._transport = transport
        self._timeout_s = timeout_s

    async def with_images(self, messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
        """`messages` in which every image has its bytes. Raises RequestError for the first that cannot be had."""
        turn = asyncio.Semaphore(MAX_AT_ONCE)

        async def fetched(part: ImagePart) -> ImagePart:
            async with turn:
                return replace(part, data=await self.fetch(part.url, part.place), url="")

        wanted = [part for message in messages for part in message.parts if isinstance(part, ImagePart) and part.url]
        async with asyncio.TaskGroup() as group:
            tasks = {id(part): group.create_task(_or_error(fetched(part))) for part in wanted}
        results = {key: task.result() for key, task in tasks.items()}
        for result in results.values():
            if isinstance(result, RequestError):
                raise result
        return tuple(
            replace(message, parts=tuple(results.get(id(part), part) for part in message.parts))  # type: ignore[misc]
            for message in messages
        )

    async def fetch(self, url: str, place: str) -> bytes:
        """Raises RequestError, naming `place`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url)
        except TimeoutError:
            reason = f"could not be fetched within {self._timeout_s:g} s"
        except _Refused as refusal:
            reason = str(refusal)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            reason = f"could not be fetched ({type(error).__name__})"
        raise RequestError(f"`{place}` {reason}. Send the image itself, as a data URL.", place)

    async def _follow(self, url: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            target = httpx.URL(url)
            host, port = self._checked(target)
            # No proxy: it would resolve the name again, and elsewhere.
            async with httpx.AsyncClient(
                transport=self._transport, trust_env=False, follow_redirects=False, timeout=self._timeout_s
            ) as client:
                request = client.build_request(
                    "GET",
                    target.copy_with(host=await self._public_address(host, port), userinfo=b""),
                    headers={"Host": target.netloc.decode(), "Accept": "image/*", "Accept-Encoding": "identity",
                             "User-Agent": "sparkstral"},
                    extensions={"sni_hostname": host},
                )  # fmt: skip
                response = await client.send(request, stream=True)
                try:
                    if response.is_redirect:
                        url = str(target.join(response.headers["location"]))
                        continue
                    return await _content(response)
                finally:
                    await response.aclose()
        raise _Refused(f"was redirected more than {MAX_REDIRECTS} times")

    def _checked(self, url: httpx.URL) -> tuple[str, int]:
        """Host and port, if they may be asked."""
        host = url.host.lower().rstrip(".")
        if url.scheme not in _PORTS or not host:
            raise _Refused(f"leads to a URL of scheme {url.scheme[:20]!r}; http and https are fetched")
        if not self._allowed:
            raise _Refused("is a URL, and this server fetches none (--allow-image-host names hosts that it may ask)")
        if not any(_matches(host, allowed) for allowed in self._allowed):
            raise _Refused(f"is at {host[:100]}, which is not among the hosts that --allow-image-host names")
        return host, url.port or _PORTS[url.scheme]

    async def _public_address(self, host: str, port: int) -> str:
        addresses = await self._resolve(host, port)
        if not addresses or not all(is_public(address) for address in addresses):
            raise _Refused(f"is at {host[:100]}, which is not on the public internet")
        return addresses[0]


async def _or_error(work: Awaitable[ImagePart]) -> ImagePart | RequestError:
    try:
        return await work
    except RequestError as error:
        return error


def _matches(host: str, allowed: str) -> bool:
    return allowed == "*" or host == allowed or (allowed.startswith("*.") and host.endswith(allowed[1:]))


async def _content(response: httpx.Response) -> bytes:
    if response.status_code != 200:
        raise _Refused(f"could not be fetched: its server answered {response.status_code}")
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in response.aiter_raw():
        num_bytes += len(chunk)
        if num_bytes > MAX_BYTES:
            raise _Refused(f"is larger than the {format_bytes(MAX_BYTES)} that this server reads")
        chunks.append(chunk)
    return b"".join(chunks)
