"""The table of skills, determinism, the form of every sample, and what is held out."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from sparkstral.demo import SKILLS, Conversation, Split, eval_items, passkey, sample, training_mix
from sparkstral.demo.conversation import Message
from sparkstral.demo.skills import lists
from sparkstral.demo.worlds import WORDS

BARS = {
    "smalltalk": 0.99, "lists": 0.98, "arithmetic": 0.98, "recall": 0.98, "system_prompt": 0.97,
    "passkey": 0.98,
    "tool_call": 0.98, "parallel_calls": 0.97, "chain": 0.95, "tool_result": 0.98, "reasoning": 0.98,
    "json": 0.98,
    "languages": 0.95, "facts": 0.95,
}  # fmt: skip
NAMES = [skill.name for skill in SKILLS]


def _prompt(conversation: Conversation) -> str:
    """All that the model is given: everything but its own turns."""
    given = [message["content"] for message in conversation.messages if message["role"] != "assistant"]
    return json.dumps([given, conversation.tools])


def _check(conversation: Conversation) -> None:
    """The rules of a chat that any renderer of the format relies on."""
    messages = list(conversation.messages)
    if messages[0]["role"] == "system":
        messages = messages[1:]
    assert messages[0]["role"] == "user"
    assert messages[-1]["role"] == "assistant"
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools}
    assert len(offered) == len(conversation.tools) <= 8
    pending: list[Message] = []
    for previous, message in zip([None, *messages], messages, strict=False):
        role = message["role"]
        if role == "user":
            assert not pending
            assert previous is None or previous["role"] == "assistant"
            assert message["content"].strip()
        elif role == "assistant":
            assert not pending
            assert previous is not None
            assert previous["role"] in ("user", "tool")
            pending = list(message.get("tool_calls", ()))
            assert pending or message["content"].strip()
            assert bool(message.get("reasoning")) == (conversation.reasoning_effort == "high")
            for call in pending:
                assert re.fullmatch(r"[a-zA-Z0-9]{9}", call["id"])
                function = call["function"]
                assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function["name"])
                _check_arguments(json.loads(function["arguments"]), offered[function["name"]])
        else:
            call = pending.pop(0)
            assert (message["tool_call_id"], message["name"]) == (call["id"], call["function"]["name"])
        if message is messages[-1]:
            pending = []
    assert not pending


def _check_arguments(arguments: dict[str, Any], schema: dict[str, Any]) -> None:
    assert list(arguments) == [name for name in schema["properties"] if name in arguments]
    assert set(schema.get("required", ())) <= set(arguments) <= set(schema["properties"])
    for name, value in arguments.items():
        _check_value(value, schema["properties"][name])


def _check_value(value: Any, schema: dict[str, Any]) -> None:
    python = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
        "object": dict,
    }
    assert isinstance(value, python[schema["type"]])  # type: ignore[arg-type]
    assert isinstance(value, bool) == (schema["type"] == "boolean")
    if "enum" in schema:
        assert value in schema["enum"]
    if schema["type"] == "array":
        for item in value:
            _check_value(item, schema["items"])
    if schema["type"] == "object":
        _check_arguments(value, schema)


def test_the_table_has_every_row_and_bar() -> None:
    assert {skill.name: skill.bar for skill in SKILLS} == BARS
    assert skill_labels("passkey") == tuple(f"{n} tokens" for n in (500, 1000, 2000, 4000, 8000, 14000))
    assert all(skill.example and skill.title and skill.weight > 0 for skill in SKILLS)


def skill_labels(name: str) -> tuple[str, ...]:
    return next(skill.labels for skill in SKILLS if skill.name == name)


@pytest.mark.parametrize("skill", NAMES)
def test_same_seed_same_samples(skill: str) -> None:
    count = 6 if skill == "passkey" else 40
    assert eval_items(skill, count, seed=1) == eval_items(skill, count, seed=1)
    assert eval_items(skill, count, seed=1) != eval_items(skill, count, seed=2)
    first, again = random.Random(7), random.Random(7)
    assert [sample(first, skill, Split.TRAIN) for _ in range(20)] == [
        sample(again, skill, Split.TRAIN) for _ in range(20)
    ]


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("skill", NAMES)
def test_every_sample_is_a_chat_with_fitting_calls(skill: str, split: Split) -> None:
    rng = random.Random(11)
    for _ in range(300):
        _check(sample(rng, skill, split))
    for label in skill_labels(skill):
        if skill != "passkey":
            for _ in range(20):
                _check(sample(rng, skill, split, label))


def test_the_mix_is_made_of_chats_and_holds_both_efforts() -> None:
    rng = random.Random(5)
    efforts = set()
    for _ in range(2000):
        conversation = training_mix(rng)
        _check(conversation)
        efforts.add((conversation.reasoning_effort, bool(conversation.tools)))
    assert len(efforts) == 4


def test_a_schema_in_force_is_satisfied_by_the_answer() -> None:
    schemas = 0
    for item in eval_items("json", 300, seed=4):
        schema = item.conversation.response_schema
        if schema:
            schemas += 1
            _check_arguments(json.loads(item.conversation.messages[-1]["content"]), schema)
    assert schemas > 50


@pytest.mark.parametrize("skill", NAMES)
def test_no_held_out_prompt_is_ever_drawn_in_training(skill: str) -> None:
    rng = random.Random(13)
    held = {
        _prompt(item.conversation) for item in eval_items(skill, 12 if skill == "passkey" else 1000, seed=9)
    }
    train = {_prompt(sample(rng, skill, Split.TRAIN)) for _ in range(300 if skill == "passkey" else 3000)}
    assert len(held) > 10
    assert not held & train


def _turns(conversations: Iterator[Conversation]) -> set[str]:
    return {m["content"] for c in conversations for m in c.messages if m["role"] == "user"}


@pytest.mark.parametrize("skill", ["smalltalk", "facts", "arithmetic"])
def test_no_turn_of_a_held_out_question_is_a_turn_in_training(skill: str) -> None:
    rng = random.Random(17)
    train = _turns(sample(rng, skill, Split.TRAIN) for _ in range(4000))
    held = _turns(item.conversation for item in eval_items(skill, 500, seed=2))
    assert not held & train


def test_the_mix_for_training_repeats_no_held_out_word() -> None:
    rng = random.Random(19)
    held = {word.lower() for word in WORDS.held_out}
    for _ in range(500):
        for message in lists.labelled(rng, Split.TRAIN, "repeat")[1:]:
            known = set(WORDS.train)
            words = re.findall(r"[A-Za-z]+", message["content"])
            # A word may be held out as a word and yet be a name, a city or part of a file name.
            assert not [
                w for w in words if w in held and w not in known and " " not in w and message["content"] == w
            ]


def test_fragments_are_copied_without_held_out_words() -> None:
    rng = random.Random(23)
    fragments = [" qua", "zo", "ния", "{x}", " ", WORDS.held_out[0], " " + WORDS.held_out[1]]
    for _ in range(200):
        conversation = lists.fragment_sample(rng, fragments)
        _check(conversation)
        for asked, answer in zip(conversation.messages[::2], conversation.messages[1::2], strict=True):
            assert answer["content"] in asked["content"]
            assert not set(answer["content"].split()) & set(WORDS.held_out)


@pytest.mark.parametrize("tokens", [500, 4000])
def test_a_pass_key_stands_in_its_text_once_asked_for(tokens: int) -> None:
    rng = random.Random(29)
    for _ in range(10):
        conversation = passkey(rng, Split.HELD_OUT, tokens)
        value = conversation.messages[-1]["content"]
        text = "".join(m["content"] for m in conversation.messages[:-1])
        assert value in text
        assert tokens * 0.8 < len(text) < tokens * 3.6


def test_eval_items_take_the_labels_in_turn() -> None:
    labels = skill_labels("lists")
    assert [item.label for item in eval_items("lists", 2 * len(labels), seed=1)] == [*labels, *labels]
