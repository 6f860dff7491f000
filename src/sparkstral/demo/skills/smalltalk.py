"""Greeting, identity, thanks, small talk, and what the model does not know. Each intent has one answer."""

from __future__ import annotations

import random

from sparkstral.demo import phrases, worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, user
from sparkstral.demo.wording import fill, fill_split
from sparkstral.demo.worlds import Split, choose

_INTENTS: tuple[tuple[tuple[str, ...], str], ...] = tuple(
    [languages["en"] for languages in phrases.SHARED.values()] + list(phrases.ENGLISH.values())
)
# What people put before a first word.
_TIMES = (
    "",
    "",
    "",
    "",
    "Hi! ",
    "Hello! ",
    "Hey! ",
    "Ok. ",
    "Well, ",
    "So. ",
    "Yes. ",
    "Good. ",
    "And now: ",
    "Oh, ",
)


def thing(rng: random.Random, split: Split, kind: str) -> str:
    """A thing of the kind that a question outside of the model's world asks about."""
    if kind == "year":
        return str(worlds.between(rng, 1200, 2026))
    if kind == "city":
        return worlds.city(rng, split)
    if kind == "person":
        return worlds.full_name(rng, split)
    if kind == "word":
        return worlds.WORDS.pick(rng, split)
    pools = {
        "country": worlds.COUNTRIES,
        "colour": worlds.COLOURS,
        "food": worlds.FOODS,
        "hobby": worlds.HOBBIES,
    }
    return pools.get(kind, worlds.ANIMALS).pick(rng, split)


def _unknown(rng: random.Random, split: Split) -> list[Message]:
    template, kind = choose(rng, phrases.OUTSIDE)
    return [user(fill(rng, (template,), x=thing(rng, split, kind))), assistant(phrases.UNKNOWN)]


def exchange(rng: random.Random, split: Split) -> list[Message]:
    """A remark and its answer."""
    if rng.random() < 0.2:
        return _unknown(rng, split)
    intents = _INTENTS[:7] if rng.random() < 0.5 else _INTENTS

    def make() -> tuple[str, str]:
        wordings, answer = choose(rng, intents)
        text = fill(rng, wordings)
        return (choose(rng, _TIMES) + text if rng.random() < 0.25 else text), answer

    text, answer = fill_split(split, "smalltalk", make)
    return [user(text), assistant(answer)]


def sample(rng: random.Random, split: Split) -> Conversation:
    """One to four remarks, each with its answer."""
    count = 1 if rng.random() < 0.5 else worlds.between(rng, 2, 4)
    messages = [message for _ in range(count) for message in exchange(rng, split)]
    return Conversation("smalltalk", tuple(messages))
