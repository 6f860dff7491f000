"""Does the demo model answer as it should: held-out conversations of each skill, asked through the HTTP door.

Owns how an evaluation is run and counted; their judges are the demo room's. Greedy, free-running
generation: a turn is asked with the right earlier turns, and a conversation passes when every turn is right, which
is the same as letting it run freely.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkstral.demo import EvalItem, EvalTurn, Skill, eval_items, skill_named
from sparkstral.evals.endpoint import Endpoint, EndpointError

Judge = Callable[[EvalItem, EvalTurn, dict[str, Any]], str | None]  # why an answer is wrong; None: it is right
MAX_ANSWER_TOKENS = 400  # longer than any right answer; an endless one is wrong anyway


@dataclass(frozen=True, slots=True)
class Miss:
    """One conversation that went wrong, with the first thing that was wrong in it."""

    skill: str
    label: str
    question: str
    why: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: one skill, or one of its lengths, against its bar."""

    skill: str
    label: str
    bar: float
    num_right: int
    num_items: int

    @property
    def share(self) -> float:
        return self.num_right / self.num_items

    @property
    def is_met(self) -> bool:
        return self.share >= self.bar


@dataclass(frozen=True, slots=True)
class DemoResult:
    rows: tuple[Row, ...]
    misses: tuple[Miss, ...]
    num_completion_tokens: int
    seconds: float

    @property
    def is_met(self) -> bool:
        return all(row.is_met for row in self.rows)


async def run_demo(
    url: str,
    items: Sequence[EvalItem],
    *,
    judge: Judge = EvalItem.wrong,
    concurrency: int = 16,
    vision_items: Sequence[EvalItem] = (),
    on_item: Callable[[str, bool], None] = lambda skill, right: None,
) -> DemoResult:
    """Ask each conversation and count.

    `vision_items` are asked too, if the server reads images. `judge` is how an answer is taken; `on_item` hears of each
    conversation (skill, right).

    Raises EndpointError when the server cannot be reached; a refused or failed request counts as wrong.
    """
    endpoint = Endpoint(url)
    slots = asyncio.Semaphore(concurrency)
    started = time.monotonic()
    try:
        model = await endpoint.model_name()
        if vision_items and await endpoint.reads_images():
            items = [*items, *vision_items]

        async def ask(item: EvalItem) -> tuple[EvalItem, Miss | None, int]:
            async with slots:
                miss, num_tokens = await _ask(endpoint, model, item, judge)
            on_item(item.skill, miss is None)
            return item, miss, num_tokens

        judged = await asyncio.gather(*map(ask, items))
    finally:
        await endpoint.aclose()
    by_name = {item.skill: skill_named(item.skill) for item in items}
    counts: dict[tuple[str, str], list[int]] = {}
    for item, miss, _ in judged:
        label = item.label if by_name[item.skill].bar_for_each_label else ""
        right_and_all = counts.setdefault((item.skill, label), [0, 0])
        right_and_all[0] += miss is None
        right_and_all[1] += 1
    return DemoResult(
        rows=tuple(Row(skill, label, by_name[skill].bar, *pair) for (skill, label), pair in counts.items()),
        misses=tuple(miss for _, miss, _ in judged if miss is not None),
        num_completion_tokens=sum(num_tokens for *_, num_tokens in judged),
        seconds=time.monotonic() - started,
    )


def draw_items(skills: Iterable[Skill], num_items: int, num_long_items: int, seed: int) -> list[EvalItem]:
    """The held-out conversations of an evaluation, long ones last so that the table fills early."""
    items: list[EvalItem] = []
    for skill in sorted(skills, key=lambda skill: skill.bar_for_each_label):
        num = num_long_items * len(skill.labels) if skill.bar_for_each_label else num_items
        items += eval_items(skill.name, num, seed)
    return items


async def _ask(endpoint: Endpoint, model: str, item: EvalItem, judge: Judge) -> tuple[Miss | None, int]:
    num_tokens = 0
    for turn in item.turns:
        try:
            answer = await endpoint.complete(request_body(model, item, turn))
        except EndpointError as error:
            return _miss(item, turn, f"the server answered: {error}"), num_tokens
        num_tokens += answer["usage"]["completion_tokens"]
        message = answer["choices"][0]["message"]
        why = judge(item, turn, {**message, "reasoning": message.get("reasoning_content", "")})
        if why is not None:
            return _miss(item, turn, why), num_tokens
    return None, num_tokens


def request_body(model: str, item: EvalItem, turn: EvalTurn) -> dict[str, Any]:
    """The chat completion that asks for one turn, with the right earlier turns."""
    conversation = item.conversation
    body: dict[str, Any] = {
        "model": model,
        "messages": list(turn.prompt),
        "reasoning_effort": conversation.reasoning_effort,
        "temperature": 0,
        "max_tokens": MAX_ANSWER_TOKENS,
    }
    if conversation.tools:
        body["tools"] = list(conversation.tools)
        # A required call is required of the turn that calls; the turn that answers from the result is free.
        if conversation.tool_choice != "required" or turn.expected.get("tool_calls"):
            body["tool_choice"] = conversation.tool_choice
    if conversation.response_schema is not None and turn.expected is conversation.messages[-1]:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": conversation.response_schema, "strict": True},
        }
    return body


def _miss(item: EvalItem, turn: EvalTurn, why: str) -> Miss:
    asked = next((m["content"] for m in reversed(turn.prompt) if m["role"] == "user"), "")
    if not isinstance(asked, str):
        asked = " ".join(part["text"] for part in asked if part["type"] == "text")
    return Miss(item.skill, item.label, asked[-200:], why[:500])
