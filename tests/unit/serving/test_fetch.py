"""Fetching images: only from named hosts, only from the public internet, bounded in size, time and redirects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest

from sparkstral.chat.images import MAX_BYTES
from sparkstral.errors import RequestError
from sparkstral.serving.fetch import ImageFetcher, is_public
from sparkstral.types import ChatMessage, ImagePart, TextPart

ADDRESSES = {
    "images.example.com": ["93.184.215.14"],
    "other.example.com": ["2606:2800:21f:cb07:6820:80da:af6b:8b2c"],
    "inside.example.com": ["10.0.0.7"],
    "half.example.com": ["93.184.215.14", "127.0.0.1"],
    "metadata.example.com": ["169.254.169.254"],
    "elsewhere.org": ["93.184.215.15"],
    "nowhere.example.com": [],
}
Handler = Callable[[httpx.Request], httpx.Response]


async def resolve(host: str, port: int) -> list[str]:
    return ADDRESSES[host]


def fetch(url: str, handler: Handler, *allowed: str, timeout_s: float = 5.0) -> bytes:
    fetcher = ImageFetcher(allowed or ("*.example.com",), resolve, httpx.MockTransport(handler), timeout_s)
    return asyncio.run(fetcher.fetch(url, "here"))


def streamed(content: bytes) -> httpx.Response:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield content[:2]
        yield content[2:]

    return httpx.Response(200, content=chunks())


def answers(request: httpx.Request) -> httpx.Response:
    return streamed(b"image")


def never(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.url} was asked")


def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((str(request.url), request.headers["host"], request.extensions["sni_hostname"]))
        assert "authorization" not in request.headers
        return streamed(b"image")

    assert fetch("https://user:secret@images.example.com:8443/a.png?b=1", handler) == b"image"
    assert asked == [("https://93.184.215.14:8443/a.png?b=1", "images.example.com:8443", "images.example.com")]


def test_an_ipv6_address_is_asked_too() -> None:
    assert fetch("http://other.example.com/", answers) == b"image"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://elsewhere.org/", "not among the hosts"),
        ("http://example.com/", "not among the hosts"),
        ("http://images.example.com.evil.org/", "not among the hosts"),
        ("http://93.184.215.14/", "not among the hosts"),
        ("http://inside.example.com/", "not on the public internet"),
        ("http://half.example.com/", "not on the public internet"),
        ("http://metadata.example.com/latest/meta-data", "not on the public internet"),
        ("http://nowhere.example.com/", "not on the public internet"),
        ("ftp://images.example.com/", "scheme 'ftp'"),
        ("http://", "could not be fetched"),
        ("http://[::1/", "could not be fetched"),
    ],
)
def test_what_is_not_asked(url: str, reason: str) -> None:
    with pytest.raises(RequestError, match="`here` ") as refused:
        fetch(url, never)
    assert reason in str(refused.value) or "scheme" in str(refused.value)
    assert refused.value.param == "here"


@pytest.mark.parametrize(
    "target",
    ["http://inside.example.com/", "http://elsewhere.org/", "file:///etc/passwd", "http://127.0.0.1:8002/livez"],
)
def test_a_redirect_is_checked_like_the_first_url(target: str) -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return httpx.Response(302, headers={"location": target})

    with pytest.raises(RequestError):
        fetch("http://images.example.com/", handler)
    assert len(asked) == 1


def test_redirects_are_followed_and_not_for_ever() -> None:
    def once(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/":
            return httpx.Response(301, headers={"location": "/moved.png"})
        return streamed(b"moved")

    assert fetch("http://images.example.com/", once) == b"moved"
    with pytest.raises(RequestError, match="redirected more than 3 times"):
        fetch("http://images.example.com/", lambda _: httpx.Response(302, headers={"location": "/"}))


def test_a_star_allows_all_names_and_no_private_address() -> None:
    assert fetch("http://elsewhere.org/", answers, "*") == b"image"
    with pytest.raises(RequestError, match="not on the public internet"):
        fetch("http://inside.example.com/", never, "*")


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("secret detail")


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (lambda _: httpx.Response(404), "its server answered 404"),
        (lambda _: streamed(bytes(MAX_BYTES + 1)), "larger than the 20.00 MiB"),
        (broken, "could not be fetched (ConnectError)"),
    ],
)
def test_what_comes_to_nothing(handler: Handler, reason: str) -> None:
    with pytest.raises(RequestError) as refused:
        fetch("http://images.example.com/", handler)
    assert reason in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def hang(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError

    fetcher = ImageFetcher(("*",), hang, httpx.MockTransport(never), 0.05)
    with pytest.raises(RequestError, match="could not be fetched within"):
        asyncio.run(fetcher.fetch("http://images.example.com/", "here"))


def test_images_get_their_bytes_where_they_stand() -> None:
    transport = httpx.MockTransport(lambda request: streamed(request.url.path.encode()))
    fetcher = ImageFetcher(("*.example.com",), resolve, transport)
    given = ImagePart("b", b"own")
    parts = (TextPart("x"), ImagePart("a", url="http://images.example.com/1"), given)
    (message,) = asyncio.run(fetcher.with_images([ChatMessage("user", parts)]))
    assert message.parts == (TextPart("x"), ImagePart("a", b"/1"), given)
    bad = ImagePart("c", url="http://inside.example.com/")
    with pytest.raises(RequestError, match="`c` is at"):
        asyncio.run(fetcher.with_images([ChatMessage("user", (*parts, bad))]))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.215.14", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False),
        ("172.16.0.1", False), ("192.168.1.1", False), ("169.254.169.254", False), ("100.64.0.1", False),
        ("0.0.0.0", False), ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False), ("fe80::1%eth0", False),
        ("fd00::1", False), ("::ffff:127.0.0.1", False), ("::ffff:93.184.215.14", True), ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False), ("ff02::1", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, expected: bool) -> None:
    assert is_public(address) is expected
