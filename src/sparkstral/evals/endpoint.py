"""A chat endpoint as evaluations and the terminal chat speak to it: OpenAI's chat completions over HTTP.

Owns the client's side of the wire; must not know how the server works.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from sparkstral.errors import SparkstralError


class EndpointError(SparkstralError):
    """The server refused or failed; the message is the server's own sentence."""


class Endpoint:
    """`url` is the server's root, e.g. http://127.0.0.1:8002. Raises EndpointError for what is no URL."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # No read limit: the first token of a 262,144-token prompt may take minutes.
        timeout = httpx.Timeout(None, connect=10.0)
        root = url.rstrip("/").removesuffix("/v1")  # SDKs are given the URL with it
        try:
            self._http = httpx.AsyncClient(base_url=root, headers=headers, timeout=timeout)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise EndpointError(f"{url!r} and its key cannot be used as an address: {error}") from error
        self.url = url

    async def aclose(self) -> None:
        await self._http.aclose()

    async def model_name(self) -> str:
        """The name that the server serves. Raises EndpointError if nobody answers there."""
        try:
            answer = await self._http.get("/v1/models")
        except httpx.HTTPError as error:
            raise EndpointError(f"No server answers at {self.url}: {error or type(error).__name__}") from error
        if answer.status_code != httpx.codes.OK:
            raise EndpointError(_sentence(answer))
        return str(answer.json()["data"][0]["id"])

    async def reads_images(self) -> bool:
        """Whether the model has eyes, as far as the server tells."""
        try:
            answer = await self._http.get("/health")
            return bool(answer.json()["info"]["reads_images"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One answer, not streamed. Raises EndpointError."""
        try:
            answer = await self._http.post("/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            raise EndpointError(f"The connection to {self.url} broke: {error or type(error).__name__}") from error
        if answer.status_code != httpx.codes.OK:
            raise EndpointError(_sentence(answer))
        result: dict[str, Any] = answer.json()
        return result

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of one streamed answer, in order. Raises EndpointError, also for an error inside the stream."""
        request = self._http.stream("POST", "/v1/chat/completions", json={**body, "stream": True})
        try:
            async with request as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    raise EndpointError(_sentence(answer))
                async for line in answer.aiter_lines():
                    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                    if data == "[DONE]":
                        return
                    if data:
                        chunk = json.loads(data)
                        if "error" in chunk:
                            raise EndpointError(str(chunk["error"].get("message", chunk["error"])))
                        yield chunk
        except httpx.HTTPError as error:
            raise EndpointError(f"The connection to {self.url} broke: {error or type(error).__name__}") from error


def _sentence(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason_phrase} from {answer.request.url}"
