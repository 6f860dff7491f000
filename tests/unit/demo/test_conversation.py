"""The judges accept the right answer and refuse a changed one."""

from __future__ import annotations

import copy
import json
import random

import pytest

from sparkstral.demo import SKILLS, eval_items, wrong_answer
from sparkstral.demo.conversation import Message, assistant, calls, with_effort


def _perturbed(message: Message) -> list[Message]:
    changed: list[Message] = []
    if message.get("tool_calls"):
        fewer = copy.deepcopy(message)
        fewer["tool_calls"] = fewer["tool_calls"][1:]
        other_name = copy.deepcopy(message)
        other_name["tool_calls"][0]["function"]["name"] += "x"
        other_arguments = copy.deepcopy(message)
        arguments = json.loads(other_arguments["tool_calls"][0]["function"]["arguments"])
        other_arguments["tool_calls"][0]["function"]["arguments"] = json.dumps({**arguments, "extra": 1})
        broken = copy.deepcopy(message)
        broken["tool_calls"][0]["function"]["arguments"] = "{"
        changed += [fewer, other_name, other_arguments, broken]
    changed.append({**message, "content": message["content"] + "x"})
    reasoning = "" if message.get("reasoning") else "Hm."
    changed.append({**message, "reasoning": reasoning})
    return changed


@pytest.mark.parametrize("skill", [skill.name for skill in SKILLS])
def test_every_target_is_right_and_every_change_is_wrong(skill: str) -> None:
    count = 6 if skill == "passkey" else 60
    for item in eval_items(skill, count, seed=3):
        assert item.turns
        for turn in item.turns:
            assert item.wrong(turn, copy.deepcopy(turn.expected)) is None
            for changed in _perturbed(turn.expected):
                assert item.wrong(turn, changed) is not None


def test_spaces_around_an_answer_do_not_matter_but_words_do() -> None:
    assert wrong_answer(assistant("82"), assistant(" 82\n"), "none") is None
    assert wrong_answer(assistant("Hello!"), assistant("hello!"), "none") is not None


def test_json_is_compared_as_parsed_and_true_is_not_one() -> None:
    expected = assistant('{"a": 1, "b": true}')
    assert wrong_answer(expected, assistant('{"b":true,"a":1}'), "none") is None
    assert wrong_answer(expected, assistant('{"a": 1, "b": 1}'), "none") is not None
    assert wrong_answer(expected, assistant('{"a": 1}'), "none") is not None


def test_order_of_calls_matters_and_order_of_arguments_does_not() -> None:
    first, second = ("f", {"x": 1, "y": 2}), ("g", {})
    rng = random.Random(1)
    expected = calls(rng, [first, second])
    assert wrong_answer(expected, calls(rng, [("f", {"y": 2, "x": 1}), second]), "high") is None
    assert wrong_answer(expected, calls(rng, [second, first]), "high") is not None


def test_effort_decides_whether_turns_reason() -> None:
    messages = [assistant("1"), assistant("2", "two")]
    assert [m.get("reasoning") for m in with_effort(messages, "none")] == [None, None]
    assert all(m["reasoning"] for m in with_effort(messages, "high"))
    assert with_effort(messages, "high")[1]["reasoning"] == "two"
