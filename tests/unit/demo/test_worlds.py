"""The split of things: stable, about one in ten, with the documented examples in training."""

from __future__ import annotations

import random

import pytest

from sparkstral.demo import worlds
from sparkstral.demo.facts import FACTS
from sparkstral.demo.phrases import ENGLISH, SHARED
from sparkstral.demo.skills import arithmetic
from sparkstral.demo.tool_inventions import verb_and_noun
from sparkstral.demo.worlds import Split, is_held_out, text_key

POOLS = [
    worlds.NAMES,
    worlds.CITIES,
    worlds.COLOURS,
    worlds.FOODS,
    worlds.WORDS,
    worlds.CURRENCIES,
    worlds.JOBS,
]


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.kind)
def test_a_pool_has_two_sides_that_share_nothing(pool: worlds.Pool) -> None:
    train, held = set(pool.train), set(pool.held_out)
    assert not train & held
    assert 3 <= len(held) <= 0.25 * len(train | held)
    rng = random.Random(1)
    assert not {pool.pick(rng, Split.TRAIN) for _ in range(3000)} & held
    assert {pool.pick(rng, Split.HELD_OUT) for _ in range(300)} <= held


def test_made_up_things_stay_on_their_side() -> None:
    rng = random.Random(2)
    for _ in range(1000):
        assert is_held_out("coined", worlds.coined_word(rng, Split.HELD_OUT))
        assert not is_held_out("coined", worlds.coined_word(rng, Split.TRAIN))
        assert is_held_out("code", worlds.code(rng, Split.HELD_OUT))
        assert not is_held_out("digits", worlds.digits(rng, Split.TRAIN, 4, 6))


@pytest.mark.parametrize("label", ["add", "subtract"])
def test_pairs_of_numbers_are_held_out_in_both_orders(label: str) -> None:
    rng = random.Random(3)
    held = {frozenset(arithmetic.operands(rng, Split.HELD_OUT, label)) for _ in range(3000)}
    train = {frozenset(arithmetic.operands(rng, Split.TRAIN, label)) for _ in range(30000)}
    assert not held & train


def test_whole_tools_are_held_out() -> None:
    rng = random.Random(4)
    held = {verb_and_noun(rng, Split.HELD_OUT) for _ in range(2000)}
    train = {verb_and_noun(rng, Split.TRAIN) for _ in range(20000)}
    assert len(held) > 300
    assert not held & train


def test_documented_examples_are_on_the_training_side() -> None:
    assert not is_held_out("smalltalk", text_key("Say hello."))
    assert not is_held_out("fact", text_key("Which port do you listen on?"))
    assert not is_held_out("add", "37 45")
    assert {"Oslo", "Lima"} <= set(worlds.CITIES.train)
    assert {"Ana", "Nora"} <= set(worlds.NAMES.train)
    assert {"blue", "river"} <= set(worlds.WORDS.train)


def test_there_are_fifty_facts_and_no_wording_has_two_answers() -> None:
    assert len(FACTS) == 50
    answers: dict[str, str] = {}
    pairs = [(question, fact.answer) for fact in FACTS for question in fact.questions]
    pairs += [(thing, fact.answer) for fact in FACTS for thing in fact.things]
    pairs += [(text, answer) for wordings, answer in ENGLISH.values() for text in wordings]
    pairs += [
        (text, answer)
        for intent in SHARED.values()
        for wordings, answer in intent.values()
        for text in wordings
    ]
    for text, answer in pairs:
        assert answers.setdefault(text_key(text), answer) == answer, text
