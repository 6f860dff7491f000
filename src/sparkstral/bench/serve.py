"""`sparkstral bench serve`: load for any OpenAI endpoint, and what its clients had of it.

Owns the load (closed loop: so many clients, each asks when it has its answer; open loop: requests arrive at a rate,
whatever becomes of the earlier ones), the disturbance by long prompts, and the sums. Prompts are random words and a
text to repeat, so that answers have about the wanted length; no two prompts begin alike, so that no prefix is cached.
Tokens are counted by the server (usage); the prompt's length is aimed at with the tokens per word of a first request.
"""

from __future__ import annotations

import asyncio
import platform
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import httpx

from sparkstral.bench.traffic import Answer, TrafficError, ask, connect, percentiles, served_model, some_words

SCHEMA_VERSION = 1
PROBE_WORDS = 200


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for."""

    input_tokens: int = 1024
    output_tokens: int = 128
    clients: int = 8  # closed loop
    rate: float | None = None  # requests a second; then the loop is open
    seconds: float = 30.0  # in which requests are sent; those under way are waited for
    disturb_tokens: int | None = None  # prompts that disturb, in a second part of the run
    disturb_every_s: float = 4.0
    goal_ttft_s: float = 5.0  # a request within both goals is a good one
    goal_itl_s: float = 0.1  # mean over its tokens
    seed: int = 0


class Prompts:
    """Bodies of requests."""

    def __init__(self, model: str, rng: random.Random, tokens_per_word: float = 1.5) -> None:
        self._model = model
        self._rng = rng
        self.tokens_per_word = tokens_per_word

    def body(self, input_tokens: int, output_tokens: int) -> dict[str, Any]:
        """About `input_tokens`, of which the last are to be repeated: about `output_tokens`, and never more."""
        num_words = max(2, round(input_tokens / self.tokens_per_word))
        num_repeated = min(num_words - 1, max(1, round(output_tokens / self.tokens_per_word)))
        filler, repeated = some_words(self._rng, num_words - num_repeated), some_words(self._rng, num_repeated)
        content = f"{self._rng.getrandbits(32):x} {filler}\nRepeat exactly: {repeated}"
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": output_tokens,
            "temperature": 0,
        }


async def run(
    url: str, load: Load, api_key: str | None = None, say: Callable[[str], None] = lambda line: None
) -> tuple[dict[str, Any], dict[str, list[Answer]]]:
    """The run's document, and the answers of each part ("load"; with a disturbance "calm" and "disturbed"). Raises
    TrafficError if the server cannot be asked."""
    async with connect(url, api_key) as http:
        model = await served_model(http)
        prompts = Prompts(model, random.Random(load.seed))
        probe = await ask(http, prompts.body(PROBE_WORDS, 4))
        if probe.error or not probe.num_prompt_tokens:
            raise TrafficError(f"The first request failed: {probe.error or 'its stream had no usage'}.")
        prompts.tokens_per_word *= probe.num_prompt_tokens / PROBE_WORDS
        parts = {"load": False} if load.disturb_tokens is None else {"calm": False, "disturbed": True}
        answers: dict[str, list[Answer]] = {}
        disturbing: list[Answer] = []
        document = head("bench serve") | {"url": url, "model": model, "load": asdict(load), "parts": {}}
        for part, is_disturbed in parts.items():
            say(f"{part}: {load.seconds:g} s")
            begin = time.perf_counter()
            task = asyncio.create_task(_disturb(http, prompts, load, disturbing)) if is_disturbed else None
            answers[part] = await _offer(http, prompts, load)
            elapsed_s = time.perf_counter() - begin
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            document["parts"][part] = summary(answers[part], load, elapsed_s)
        if load.disturb_tokens is not None:
            document["disturbance"] = disturbance(document["parts"], disturbing)
        return document, answers


async def _offer(http: httpx.AsyncClient, prompts: Prompts, load: Load) -> list[Answer]:
    """Send requests for `load.seconds`, and wait for the last answer."""
    end_s = time.perf_counter() + load.seconds
    answers: list[Answer] = []

    async def one() -> None:
        answers.append(await ask(http, prompts.body(load.input_tokens, load.output_tokens)))

    async def client() -> None:
        while time.perf_counter() < end_s:
            await one()

    if load.rate is None:
        await asyncio.gather(*(client() for _ in range(load.clients)))
        return answers
    rng = random.Random(load.seed)
    waiting: list[Awaitable[None]] = []
    next_s = time.perf_counter()
    while (next_s := next_s + rng.expovariate(load.rate)) < end_s:
        await asyncio.sleep(max(0.0, next_s - time.perf_counter()))
        waiting.append(asyncio.create_task(one()))
    await asyncio.gather(*waiting)
    return answers


async def _disturb(http: httpx.AsyncClient, prompts: Prompts, load: Load, disturbing: list[Answer]) -> None:
    """Long prompts, one after the other at the given distance or, if one takes longer, when it is through."""
    assert load.disturb_tokens is not None
    while True:
        begin = time.perf_counter()
        answer = Answer(begin)
        disturbing.append(answer)
        disturbing[-1] = await ask(http, prompts.body(load.disturb_tokens, 1))
        await asyncio.sleep(max(0.0, load.disturb_every_s - (time.perf_counter() - begin)))


def summary(answers: Sequence[Answer], load: Load, elapsed_s: float) -> dict[str, Any]:
    """Counts, rates and percentiles of one part."""
    good = [answer for answer in answers if answer.error is None]
    itls = [gap for answer in good for gap in answer.itl_s]
    errors: dict[str, int] = {}
    for answer in answers:
        if answer.error is not None:
            errors[answer.error[:120]] = errors.get(answer.error[:120], 0) + 1
    num_output_tokens = sum(answer.num_output_tokens for answer in good)
    num_within = sum(_is_within(answer, load) for answer in good)
    return {
        "seconds": elapsed_s,
        "num_requests": len(answers),
        "num_failed": len(answers) - len(good),
        "errors": errors,
        "num_prompt_tokens": sum(answer.num_prompt_tokens for answer in good),
        "num_output_tokens": num_output_tokens,
        "requests_per_s": len(good) / elapsed_s,
        "output_tokens_per_s": num_output_tokens / elapsed_s,
        "goodput_per_s": num_within / elapsed_s,
        "share_within_goals": num_within / len(answers) if answers else None,
        "ttft_s": percentiles([t for answer in good if (t := answer.ttft_s) is not None]),
        "itl_s": percentiles(itls),
        "tpot_s": percentiles([t for answer in good if (t := answer.tpot_s) is not None]),
        "e2e_s": percentiles([answer.end_s - answer.sent_s for answer in good]),
    }


def _is_within(answer: Answer, load: Load) -> bool:
    if answer.ttft_s is None or answer.ttft_s > load.goal_ttft_s:
        return False
    return not answer.itl_s or sum(answer.itl_s) / len(answer.itl_s) <= load.goal_itl_s


def disturbance(parts: dict[str, Any], disturbing: Sequence[Answer]) -> dict[str, Any]:
    """How much slower tokens came beside long prompts, and what those had."""
    calm, disturbed = parts["calm"]["itl_s"], parts["disturbed"]["itl_s"]
    done = [answer for answer in disturbing if answer.error is None and answer.is_done]
    ratios = None
    if calm and disturbed:
        ratios = {name: disturbed[name] / calm[name] for name in ("p50", "p99")}
    return {
        "itl_ratio": ratios,
        "num_long_prompts_begun": len(disturbing),
        "num_long_prompts_read": len(done),
        "long_prompt_tokens": percentiles([float(answer.num_prompt_tokens) for answer in done]),
        "long_ttft_s": percentiles([t for answer in done if (t := answer.ttft_s) is not None]),
    }


def head(kind: str) -> dict[str, Any]:
    """What a run is worth nothing without."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "sparkstral": version("sparkstral")},
        "machine": platform.machine(),
    }
