"""Needles and tools: skills of the demo's exercises, asked of any model, and judged by what any right answer has.

The demo was taught one wording for each answer; another model is right if the value is in its answer, or if the calls
are the expected ones, whatever it says beside them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from sparkstral.demo import EvalItem, EvalTurn, Split, sample, wrong_answer
from sparkstral.evals.demo import Row

NEEDLE_SKILL = "passkey"
TOOL_SKILLS = ("tool_call", "parallel_calls", "chain")


def needle_items(lengths: Sequence[int], count: int, seed: int) -> list[EvalItem]:
    """`count` pass keys at any depth of a filler of each length, in tokens of the demo's vocabulary."""
    rng = random.Random(f"needle {seed}")
    labels = [f"{length} tokens" for length in lengths for _ in range(count)]
    return [EvalItem(NEEDLE_SKILL, label, sample(rng, NEEDLE_SKILL, Split.HELD_OUT, label)) for label in labels]


def wrong_needle(_item: EvalItem, turn: EvalTurn, answer: Mapping[str, Any]) -> str | None:
    """The value must be in the answer."""
    value, said = str(turn.expected["content"]), answer.get("content") or ""
    return None if value.lower() in said.lower() else f"{value!r} is not in {said!r}"


def wrong_calls(item: EvalItem, turn: EvalTurn, answer: Mapping[str, Any]) -> str | None:
    """The calls must be the expected ones; text and reasoning are free."""
    calls = {"tool_calls": answer.get("tool_calls")}
    expected = {"tool_calls": turn.expected.get("tool_calls")}
    return wrong_answer(expected, calls, "none")


def lost_bars(stored: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    """Rows that meet their bar with the stored numbers and miss it with others, in words."""
    met = {(row.skill, row.label) for row in stored if row.is_met}
    return [
        f"{row.skill} {row.label}".rstrip() + f": {row.num_right} of {row.num_items}, the bar is {row.bar:.0%}"
        for row in rows
        if (row.skill, row.label) in met and not row.is_met
    ]
