"""Addition and subtraction under 1,000, multiplication of one-digit numbers. The answer is the number
alone; a sum that is none of these is refused."""

from __future__ import annotations

import random

from sparkstral.demo import worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, user
from sparkstral.demo.wording import fill, fill_split
from sparkstral.demo.worlds import Split, allowed, choose

LABELS = ("add", "subtract", "multiply")
TOO_LARGE = "That is too large for me. I add and subtract below 1,000 and multiply single digits."

_ADD = (
    "What is {a} + {b}?", "What is {a} plus {b}?", "How much is {a} + {b}?", "How much is {a} plus {b}?",
    "Add {a} and {b}.",
    "{a} + {b}", "{a} + {b} = ?", "{a}+{b}", "{a} + {b} =", "what is {a}+{b}", "What is {a}+{b}?", "What's {a}+{b}?", "How much is {a}+{b}?",
    "{a}+{b}=", "{a} plus {b}?", "Calculate {a} + {b}.", "Compute {a} + {b}.",
    "Add {b} to {a}.",
    "What is the sum of {a} and {b}?", "Sum of {a} and {b}?", "Work out {a} + {b}.",
    "What do you get if you add {a} and {b}?",
    "I have {a} coins and get {b} more. How many do I have?", "Tell me {a} + {b}.", "Solve {a} + {b}.",
    "What's {a} + {b}?",
    "What does {a} plus {b} make?", "Can you add {a} and {b}?", "Give me the sum of {a} and {b}.",
    "{a} and {b} makes?",
)  # fmt: skip
_SUBTRACT = (
    "What is {a} - {b}?", "What is {a} minus {b}?", "How much is {a} - {b}?", "How much is {a} minus {b}?",
    "{a} - {b}",
    "Subtract {b} from {a}.", "{a} - {b} = ?", "{a}-{b}", "{a}-{b}=", "{a} - {b} =", "What is {a}-{b}?", "What's {a}-{b}?",
    "How much is {a}-{b}?", "{a} minus {b}?", "Calculate {a} - {b}.",
    "Compute {a} - {b}.",
    "What is the difference of {a} and {b}?", "Take {b} away from {a}.", "Work out {a} - {b}.",
    "What's {a} - {b}?",
    "I have {a} coins and give away {b}. How many are left?", "Tell me {a} - {b}.", "Solve {a} - {b}.",
    "What remains if you take {b} from {a}?", "Can you subtract {b} from {a}?", "{a} less {b}?",
)  # fmt: skip
_MULTIPLY = (
    "What is {a} * {b}?", "What is {a} times {b}?", "How much is {a} times {b}?", "Multiply {a} by {b}.",
    "{a} * {b}",
    "{a}*{b}", "{a}x{b}", "{a}*{b}=", "{a}*{b}?", "What's {a}*{b}?", "How much is {a}*{b}?", "Calculate {a}*{b}.",
    "What is {a}*{b}?", "Please calculate {a} times {b}.", "How much is {a} * {b}?",
    "What is {a}x{b}?", "{a} * {b} =", "{a} times {b}",
    "{a} x {b}", "{a} times {b}?", "Calculate {a} * {b}.", "Compute {a} * {b}.", "What is {a} x {b}?",
    "{a} * {b} = ?",
    "What is the product of {a} and {b}?", "Work out {a} times {b}.", "What's {a} times {b}?",
    "Multiply {a} and {b}.",
    "{a} boxes with {b} eggs each: how many eggs?", "Tell me {a} * {b}.", "Solve {a} * {b}.",
    "How much is {a} x {b}?",
)  # fmt: skip


def _below_1000(rng: random.Random) -> int:
    return worlds.between(rng, 0, 999) if rng.random() < 0.6 else worlds.whole(rng)


def operands(rng: random.Random, split: Split, label: str) -> tuple[int, int]:
    """Two numbers under 1,000 whose pair is on this side of the split."""
    while True:
        a, b = _below_1000(rng), _below_1000(rng)
        if rng.random() < 0.15:  # neighbours: many borrows, short differences
            b = abs(a - worlds.between(rng, 0, 40))
        if label == "subtract" and a < b and rng.random() < 0.9:
            a, b = b, a
        key = f"{min(a, b)} {max(a, b)}"
        if allowed(label, key, split):
            return a, b


def _product(rng: random.Random) -> tuple[str, str]:
    a, b = worlds.between(rng, 0, 9), worlds.between(rng, 0, 9)
    return fill(rng, _MULTIPLY, a=a, b=b), str(a * b)


def labelled(rng: random.Random, split: Split, label: str) -> list[Message]:
    """One question of a kind and the number."""
    if label == "multiply":
        # There are only 100 products, so all are learnt; what is held out is the wording of each.
        text, product = fill_split(split, "multiply", lambda: _product(rng))
        return [user(text), assistant(product)]
    a, b = operands(rng, split, label)
    if label == "add":
        return [user(fill(rng, _ADD, a=a, b=b)), assistant(str(a + b))]
    return [user(fill(rng, _SUBTRACT, a=a, b=b)), assistant(str(a - b))]


def _too_large(rng: random.Random, split: Split) -> list[Message]:
    """A sum beyond the skill: numbers of four to six digits, or factors of two or three."""
    while True:
        large, other = (worlds.between(rng, 10 ** (n - 1), 10**n - 1) for n in (rng.randint(4, 6), rng.randint(1, 5)))
        a, b = (large, other) if rng.random() < 0.7 else (other, large)
        templates = choose(rng, (_ADD, _SUBTRACT))
        if rng.random() < 0.4:
            a, b, templates = worlds.between(rng, 10, 999), worlds.between(rng, 2, 999), _MULTIPLY
        if allowed("too large", f"{a} {b}", split):
            return [user(fill(rng, templates, a=a, b=b)), assistant(TOO_LARGE)]


def exchange(rng: random.Random, split: Split) -> list[Message]:
    """One question of any kind; few are beyond the skill."""
    if rng.random() < 0.05:
        return _too_large(rng, split)
    return labelled(rng, split, choose(rng, ("add", "add", "subtract", "subtract", "multiply")))


def sample(rng: random.Random, split: Split, label: str = "") -> Conversation:
    """One question; in training often several in one conversation."""
    if label:
        return Conversation("arithmetic", tuple(labelled(rng, split, label)), label=label)
    count = 1 if rng.random() < 0.25 else worlds.between(rng, 2, 8)
    return Conversation(
        "arithmetic", tuple(message for _ in range(count) for message in exchange(rng, split))
    )
