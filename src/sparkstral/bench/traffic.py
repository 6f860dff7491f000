"""A client that measures: one streamed chat completion of any OpenAI endpoint, with the time of each piece.

Owns the client's side of the wire for bench/; must not know what is asked or why.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from sparkstral.errors import SparkstralError

WORDS = (
    "river", "mill", "clerk", "letter", "village", "elm", "ferry", "noon", "goat", "rain", "north", "coast", "stone",
    "bridge", "lamp", "garden", "winter", "apple", "horse", "music", "paper", "window", "copper", "island", "market",
    "shadow", "silver", "summer", "thunder", "valley", "wagon", "yellow", "basket", "candle", "desert",
)  # fmt: skip


class TrafficError(SparkstralError):
    """The server cannot be measured as it is."""


@dataclass(slots=True)
class Answer:
    """What came of one request; times of time.perf_counter."""

    sent_s: float
    piece_s: list[float] = field(default_factory=list)  # when each piece of content, reasoning or call came
    text: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None
    has_left: bool = False  # we have
    is_done: bool = False  # the stream said so
    end_s: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        return self.piece_s[0] - self.sent_s if self.piece_s else None

    @property
    def itl_s(self) -> list[float]:
        """Between one piece and the next."""
        return [b - a for a, b in zip(self.piece_s, self.piece_s[1:], strict=False)]

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first, on average."""
        if len(self.piece_s) < 2 or self.num_output_tokens < 2:
            return None
        return (self.piece_s[-1] - self.piece_s[0]) / (self.num_output_tokens - 1)


def connect(url: str, api_key: str | None = None) -> httpx.AsyncClient:
    """A client for any number of streams at once; `url` may end in /v1."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    timeout = httpx.Timeout(None, connect=10.0)  # a queue is what is to be measured
    return httpx.AsyncClient(
        base_url=url.rstrip("/").removesuffix("/v1"), headers=headers, limits=limits, timeout=timeout
    )


async def served_model(http: httpx.AsyncClient) -> str:
    """The name of the first model. Raises TrafficError if nobody answers."""
    try:
        answer = await http.get("/v1/models")
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise TrafficError(f"{http.base_url} does not name its models: {error or type(error).__name__}.") from error


async def ask(http: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None = None) -> Answer:
    """Stream one completion; with `leave_after`, hang up after so many pieces (0: as soon as it is accepted)."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer = Answer(time.perf_counter())
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                answer.error = f"{response.status_code}: {response.text[:300]}"
                return answer
            async for line in response.aiter_lines():
                if leave_after is not None and len(answer.piece_s) >= leave_after:
                    answer.has_left = True
                    return answer
                if line.startswith("data:"):
                    _take(answer, line[5:].strip())
            if not answer.is_done and answer.error is None:
                answer.error = "the stream broke off"
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        answer.end_s = time.perf_counter()
    return answer


def _take(answer: Answer, data: str) -> None:
    if data == "[DONE]":
        answer.is_done = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        answer.error = str(chunk["error"].get("message", chunk["error"]))
        return
    if usage := chunk.get("usage"):
        answer.num_prompt_tokens = usage["prompt_tokens"]
        answer.num_output_tokens = usage["completion_tokens"]
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        calls = delta.get("tool_calls") or ()
        if text or calls or delta.get("reasoning_content") or delta.get("reasoning"):
            answer.piece_s.append(time.perf_counter())
        answer.text += text
        for call in calls:
            function = call.get("function", {})
            if function.get("name"):
                answer.calls.append({"name": function["name"], "arguments": ""})
            answer.calls[-1]["arguments"] += function.get("arguments") or ""
        if choice.get("finish_reason"):
            answer.finish_reasons.append(choice["finish_reason"])


def some_words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles (nearest rank); None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    found = {"mean": sum(ordered) / len(ordered)}
    for percent in (50, 90, 95, 99):
        found[f"p{percent}"] = ordered[min(len(ordered) - 1, -(-percent * len(ordered) // 100) - 1)]
    return found | {"max": ordered[-1]}
