"""How a request is worded: templates, courtesy, carelessness.

Owns: filling a template in many small variations. Must not touch the words that fill the slots: an answer may
have to repeat them exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from sparkstral.demo.worlds import Split, allowed, choose, text_key

# Prefixes after which the sentence goes on in lower case, and those after which it starts anew.
_JOINING = (
    "Please ",
    "please ",
    "Now ",
    "Then ",
    "And now ",
    "Ok, ",
    "Okay, ",
    "So, ",
    "Well, ",
    "Hey, ",
    "Next, ",
)
_STARTING = (
    "Hi! ", "Hello. ", "Hi there. ", "Hello! ", "Quick question: ", "One more thing: ", "Question: ",
    "Next: ",
    "Good. ", "Thanks. ", "Task: ", "Another one: ", "Great. ", "Listen: ", "Let us go on. ",
    "I need your help. ",
)  # fmt: skip
_ENDINGS = (" Thanks.", " Thank you.", " Thanks!", " Please.", " Thank you!", " thanks")


def fill(rng: random.Random, templates: Sequence[str], /, **slots: object) -> str:
    """One template with its slots filled, at times with courtesy, in lower case, or without its last mark.

    A template that ends with a slot gets no ending, so that the slot's end stays clear.
    """
    template = choose(rng, templates)
    roll = rng.random()
    if roll < 0.18:
        template = choose(rng, _STARTING) + template
    elif roll < 0.32 and template[0].isalpha() and not template.startswith("I "):
        template = choose(rng, _JOINING) + template[0].lower() + template[1:]
    roll = rng.random()
    if roll < 0.08 and template[-1] in ".?!":
        template += choose(rng, _ENDINGS)
    elif roll < 0.2:
        template = template.rstrip(".?!") or template
    elif roll < 0.24 and template[-1] == ".":
        template = template[:-1] + "!"
    if rng.random() < 0.13:
        template = template.lower()
    return template.format(**slots) if slots else template


def fill_split(split: Split, kind: str, make: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """A (wording, answer) whose wording falls on this side of the split: make is called until one does."""
    while True:
        text, answer = make()
        if allowed(kind, text_key(text), split):
            return text, answer


def listing(rng: random.Random, items: Sequence[str], last: str = "and") -> str:
    """Items in a row: commas, with or without a last "and"."""
    if len(items) == 1:
        return items[0]
    if rng.random() < 0.5:
        return ", ".join(items)
    return ", ".join(items[:-1]) + f" {last} " + items[-1]
