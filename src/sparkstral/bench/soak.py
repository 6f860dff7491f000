"""`sparkstral bench soak`: many clients for a long time, every answer checked, and at the end what is left behind.

Owns the traffic and the judgement. Each request carries a canary, a number that no other has. Before the load, every
request of a pool is asked alone; those whose answer the model gets right are kept. Under load the same requests must
have the same answers (greedy decoding), whatever runs beside them: an answer that differs is wrong, one with another's
canary is mixed. Some clients leave early; the next must not notice. Afterwards the server must hold nothing: no
request, no block, and no more memory than at the beginning. Counts are read from its /metrics.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from sparkstral.bench.serve import head
from sparkstral.bench.traffic import Answer, TrafficError, ask, connect, percentiles, served_model, some_words

CITIES = ("Oslo", "Lima", "Paris", "Berlin", "Madrid", "Rome", "Tokyo", "Cairo", "London", "Vienna")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SAMPLE_S = 2.0  # between two looks at the memory
WARM_SHARE = 0.3  # of the time, in which memory may grow: caches and allocators fill
WINDOW_MINUTES = 0.5
MAX_SLOPE_MIB = 1.0  # a minute, after that
SETTLE_S = 20.0  # for what was left under way
MIN_POOL = 8


@dataclass(frozen=True, slots=True)
class SoakLoad:
    minutes: float = 10.0
    clients: int = 32
    abort_share: float = 0.2
    pool: int = 96  # different requests
    max_input_tokens: int = 1500
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """One request of the pool; `canary` stands in its right answer and in no other's."""

    kind: str
    canary: str
    body: dict[str, Any]
    answer: str = ""  # what it is, asked alone


@dataclass(slots=True)
class Tally:
    """What became of the requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)  # the first few, in words
    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)  # (minutes, MiB of server and engine)

    def fault(self, outcome: str, item: Item, words: str) -> None:
        self.outcomes[outcome] += 1
        if len(self.faults) < 20:
            self.faults.append(f"{outcome} ({item.kind} {item.canary}): {words[:200]}")


def draw_items(load: SoakLoad, model: str) -> list[Item]:
    """The pool, before anything is asked."""
    rng = random.Random(load.seed)
    numbers = rng.sample(range(10_000, 100_000), load.pool)
    items = []
    for i, number in enumerate(numbers):
        kind = ("pass key", "repeat", "tool")[i % 3]
        body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 200}
        canary = str(number)
        if kind == "pass key":
            num_words = rng.randint(20, max(21, load.max_input_tokens // 2))
            words = some_words(rng, num_words).split()
            words.insert(rng.randrange(len(words)), f". The pass key is {canary}. Remember it.")
            content = " ".join(words) + "\n\nWhat is the pass key?"
        elif kind == "repeat":
            before, behind = (some_words(rng, rng.randint(1, 8)) for _ in range(2))
            content = f"Repeat exactly: {before} {canary} {behind}"
        else:
            city = CITIES[i // 3 % len(CITIES)]
            canary = city
            content = f"What is the weather in {city}?"
            body["tools"] = [WEATHER]
        items.append(Item(kind, canary, body | {"messages": [{"role": "user", "content": content}]}))
    return items


def written(answer: Answer) -> str:
    """All that an answer says, in one text."""
    return answer.text + "".join(f"{call['name']}{call['arguments']}" for call in answer.calls)


async def soak(
    url: str, load: SoakLoad, api_key: str | None = None, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Run, and judge; "verdict" is ok or failed, "broken" says what did not hold. Raises TrafficError if the server
    cannot be asked or answers too little rightly to judge by."""
    async with connect(url, api_key) as http:
        items = await _learn(http, draw_items(load, await served_model(http)), say)
        tally = Tally()
        before = await read_metrics(http)
        begin = time.perf_counter()
        watching = asyncio.create_task(_watch_memory(http, begin, tally))
        end_s = begin + 60 * load.minutes
        say(f"soaking with {load.clients} clients for {load.minutes:g} minutes")
        clients = (
            _client(http, items, tally, random.Random(f"{load.seed} {i}"), load.abort_share, end_s)
            for i in range(load.clients)
        )
        await asyncio.gather(*clients)
        elapsed_s = time.perf_counter() - begin
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        after = await _settled(http)
    broken = judge(tally, before, after, load)
    return head("bench soak") | {
        "url": url,
        "load": asdict(load),
        "seconds": elapsed_s,
        "num_items": dict(Counter(item.kind for item in items)),
        "outcomes": dict(tally.outcomes),
        "kinds": dict(tally.kinds),
        "faults": tally.faults,
        "ttft_s": percentiles(tally.ttft_s),
        "itl_s": percentiles(tally.itl_s),
        "memory_mib_by_minute": tally.memory,
        "memory_slope_mib_per_minute": slope(floor(tally.memory)),
        "metrics": {name: after[name] - before.get(name, 0.0) for name in _COUNTS if name in after},
        "broken": broken,
        "verdict": "failed" if broken else "ok",
    }


_COUNTS = (
    "sparkstral_generated_tokens_total", "sparkstral_prompt_tokens_total", "sparkstral_prompt_tokens_cached_total",
    "sparkstral_preemptions_total", "sparkstral_steps_total", "sparkstral_sick_requests_total", "ended",
)  # fmt: skip


async def _learn(http: httpx.AsyncClient, items: Sequence[Item], say: Callable[[str], None]) -> list[Item]:
    """The items that the model gets right alone, with their answers."""
    kept = []
    for item in items:
        answer = await ask(http, item.body)
        if answer.error is not None:
            raise TrafficError(f"A first request failed: {answer.error}.")
        if item.canary in written(answer):
            kept.append(Item(item.kind, item.canary, item.body, written(answer)))
    say(f"{len(kept)} of {len(items)} requests have a right answer to compare with")
    if len(kept) < MIN_POOL:
        raise TrafficError(f"The model answers {len(kept)} of {len(items)} rightly; {MIN_POOL} are needed to judge by.")
    return kept


async def _client(
    http: httpx.AsyncClient, items: Sequence[Item], tally: Tally, rng: random.Random, abort_share: float, end_s: float
) -> None:
    canaries = {item.canary for item in items if item.kind != "tool"}
    while time.perf_counter() < end_s:
        item = rng.choice(items)
        leave_after = rng.choice((0, 1, 2, 5)) if rng.random() < abort_share else None
        answer = await ask(http, item.body, leave_after)
        tally.kinds[item.kind] += 1
        text = written(answer)
        if answer.ttft_s is not None:
            tally.ttft_s.append(answer.ttft_s)
            tally.itl_s += answer.itl_s
        others = (canaries - {item.canary}) & set(re.findall(r"\d{5}", text))
        if answer.error is not None:
            tally.fault("failed", item, answer.error)
        elif others:
            tally.fault("mixed", item, f"holds {sorted(others)}: {text!r}")
        elif answer.has_left:
            tally.outcomes["left"] += 1
            if not item.answer.startswith(answer.text):
                tally.fault("wrong", item, f"{text!r} is no beginning of {item.answer!r}")
        elif text != item.answer:
            tally.fault("wrong", item, f"{text!r} instead of {item.answer!r}")
        elif len(answer.finish_reasons) != 1:
            tally.fault("ended twice or never", item, repr(answer.finish_reasons))
        else:
            tally.outcomes["right"] += 1


def judge(tally: Tally, before: dict[str, float], after: dict[str, float], load: SoakLoad) -> list[str]:
    """What did not hold, in words; nothing is good."""
    broken = [
        f"{tally.outcomes[outcome]} answers {outcome}"
        for outcome in ("wrong", "mixed", "failed", "ended twice or never")
        if tally.outcomes[outcome]
    ]
    if not tally.outcomes["right"]:
        broken.append("no answer was right")
    for name, what in (
        ("sparkstral_requests_in_flight", "requests are in flight"),
        ("sparkstral_requests_running", "requests run"),
        ("sparkstral_requests_waiting", "requests wait"),
        ("sparkstral_kv_cache_usage_ratio", "of the KV blocks are held"),
    ):
        if after.get(name, 0.0) > 1e-9:
            broken.append(f"{after[name]:g} {what} after the end")
    if "ended" in after:
        num_complete = tally.outcomes["right"] + tally.outcomes["wrong"]
        num_sent = sum(tally.kinds.values())
        num_ended = after["ended"] - before["ended"]
        if not num_complete <= num_ended <= num_sent:
            broken.append(f"the server counts {num_ended:g} ends of {num_sent} requests")
    per_minute = slope(floor(tally.memory))
    if load.minutes >= 5 and per_minute is not None and per_minute > MAX_SLOPE_MIB:
        broken.append(f"memory grows by {per_minute:.1f} MiB a minute")
    return broken


async def read_metrics(http: httpx.AsyncClient) -> dict[str, float]:
    """Plain values of /metrics; "ended" is the sum of all ends. Empty for a server that has none."""
    try:
        answer = await http.get("/metrics")
    except httpx.HTTPError:
        return {}
    if answer.status_code != httpx.codes.OK:
        return {}
    found: dict[str, float] = {"ended": 0.0}
    for line in answer.text.splitlines():
        name, _, value = line.rpartition(" ")
        if line.startswith("sparkstral_requests_total{"):
            found["ended"] += float(value)
        elif name and not line.startswith("#") and "{" not in name:
            found[name] = float(value)
    return found


async def _settled(http: httpx.AsyncClient) -> dict[str, float]:
    """The metrics once nothing is under way, or after a while."""
    end_s = time.perf_counter() + SETTLE_S
    while True:
        found = await read_metrics(http)
        busy = ("in_flight", "running", "waiting")
        if not any(found.get(f"sparkstral_requests_{name}") for name in busy) or time.perf_counter() > end_s:
            return found
        await asyncio.sleep(0.2)


async def _watch_memory(http: httpx.AsyncClient, begin_s: float, tally: Tally) -> None:
    names = ("process_resident_memory_bytes", "sparkstral_engine_process_resident_memory_bytes")
    while True:
        found = await read_metrics(http)
        if all(name in found for name in names):
            minutes = (time.perf_counter() - begin_s) / 60
            tally.memory.append((round(minutes, 3), round(sum(found[name] for name in names) / 2**20, 2)))
        await asyncio.sleep(SAMPLE_S)


def floor(memory: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The least of each window after the warm-up: what a step has for a moment is no growth."""
    warm = memory[int(WARM_SHARE * len(memory)) :]
    lows: dict[int, tuple[float, float]] = {}
    for minutes, mib in warm:
        window = int(minutes / WINDOW_MINUTES)
        lows[window] = min(lows.get(window, (minutes, mib)), (minutes, mib), key=lambda point: point[1])
    return list(lows.values())


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Of the least-squares line; None of less than three points."""
    if len(points) < 3:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else None
