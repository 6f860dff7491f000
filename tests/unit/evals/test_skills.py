"""How answers of any model are judged, and which bars a setting loses."""

from __future__ import annotations

from typing import Any

from sparkstral.demo import EvalItem, EvalTurn, eval_items
from sparkstral.evals.demo import Row
from sparkstral.evals.skills import TOOL_SKILLS, lost_bars, needle_items, wrong_calls, wrong_needle


def turn_with_calls() -> tuple[EvalItem, EvalTurn]:
    (item,) = eval_items("parallel_calls", 1, seed=0)
    return item, next(turn for turn in item.turns if turn.expected.get("tool_calls"))


def test_needles_have_their_length_and_are_the_same_for_a_seed() -> None:
    items = needle_items([300, 1200], 2, seed=1)
    assert [item.label for item in items] == ["300 tokens"] * 2 + ["1200 tokens"] * 2
    sizes = [sum(len(message["content"]) for message in item.conversation.messages) for item in items]
    assert min(sizes[2:]) > 2 * max(sizes[:2])
    assert items == needle_items([300, 1200], 2, seed=1) != needle_items([300, 1200], 2, seed=2)


def test_a_needle_is_right_in_any_words() -> None:
    (item,) = needle_items([300], 1, seed=0)
    turn = item.turns[-1]
    value = turn.expected["content"]
    assert wrong_needle(item, turn, {"content": f"I think that it is {value.upper()}."}) is None
    for said in ({"content": value[:-1]}, {"content": None}, {}):
        assert wrong_needle(item, turn, said) is not None


def test_calls_are_right_whatever_is_said_beside_them() -> None:
    item, turn = turn_with_calls()
    calls: list[dict[str, Any]] = turn.expected["tool_calls"]
    assert wrong_calls(item, turn, {"content": "Let me look.", "reasoning": "Hm.", "tool_calls": calls}) is None
    assert wrong_calls(item, turn, {"content": "", "tool_calls": calls[1:]}) is not None
    assert wrong_calls(item, turn, {"content": "Let me look."}) is not None
    assert {item.skill} <= set(TOOL_SKILLS)


def test_a_bar_is_lost_where_it_was_met() -> None:
    stored = [Row("lists", "", 0.9, 10, 10), Row("passkey", "500 tokens", 0.9, 5, 10), Row("json", "", 0.9, 9, 10)]
    other = [Row("lists", "", 0.9, 8, 10), Row("passkey", "500 tokens", 0.9, 4, 10), Row("json", "", 0.9, 10, 10)]
    assert lost_bars(stored, other) == ["lists: 8 of 10, the bar is 90%"]
    assert lost_bars(stored, stored) == []
