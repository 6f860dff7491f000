"""Repeat, spell, count, reverse, sort a short list, first, last and nth item."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sparkstral.demo import worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, user
from sparkstral.demo.wording import fill, listing
from sparkstral.demo.worlds import Split, allowed, choose, held_out_anywhere

LABELS = (
    "repeat",
    "spell",
    "spell backwards",
    "count",
    "how many",
    "reverse",
    "sort",
    "sort numbers",
    "item",
)
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")

_REPEAT = (
    "Repeat exactly: {x}", "Repeat: {x}", "Say exactly: {x}", "Repeat after me: {x}", "Say: {x}",
    "Copy this: {x}",
    "Echo: {x}", "Write exactly: {x}", "Repeat this text: {x}", "Repeat the words {x}", "Type this: {x}",
    "Copy: {x}",
    "Repeat this exactly: {x}", "Print: {x}", "Say the following: {x}", "Give me back: {x}",
    "Answer with: {x}",
    'Repeat "{x}".', 'Say "{x}".', 'Repeat exactly "{x}"', 'Copy "{x}" for me.', 'Write "{x}".',
    "Repeat exactly:\n{x}",
    'Can you repeat "{x}"?', 'Could you say "{x}"?', 'Answer only "{x}".', "Reply with exactly: {x}",
    "Output: {x}",
    'Your answer must be "{x}".', 'Tell me "{x}".',
)  # fmt: skip
_SPELL = (
    "Spell {x}.", "Spell the word {x}.", "Spell {x}", "How do you spell {x}?", "Please spell {x}.",
    "Spell out {x}.",
    "Can you spell {x}?", "How is {x} spelled?", 'Spell "{x}".', "What are the letters of {x}?", "Spell: {x}",
    "Give me the letters of {x}.", 'Spell the word "{x}" for me.', "Write {x} letter by letter.",
    "Letters of {x}?",
)  # fmt: skip
_SPELL_BACKWARDS = (
    "Spell {x} backwards.", "Spell the word {x} backwards.", "How do you spell {x} backwards?",
    "Reverse the word {x}.",
    "Spell {x} in reverse.", "Write {x} backwards.", "Reverse the letters of {x}.", 'Reverse "{x}".',
    "Say {x} backwards.",
    "What is {x} backwards?", "Turn the word {x} around.",
)  # fmt: skip
_COUNT = (
    "Count from {a} to {b}.", "Count up from {a} to {b}.", "List the numbers from {a} to {b}.",
    "Count {a} to {b}.",
    "Say the numbers from {a} to {b}.", "Write the numbers {a} to {b}.", "Can you count from {a} to {b}?",
    "Numbers from {a} to {b}, please.", "Start at {a} and count to {b}.",
    "Give me all numbers from {a} to {b}.",
)  # fmt: skip
_COUNT_TO = ("Count to {b}.", "Count up to {b}.", "Can you count to {b}?", "Please count to {b}.")
_COUNT_DOWN = (
    "Count down from {b} to {a}.", "Count backwards from {b} to {a}.", "Count down {b} to {a}.",
    "Give me a countdown from {b} to {a}.", "Count from {b} down to {a}.",
)  # fmt: skip
_HOW_MANY = (
    "How many words are in this list: {x}", "How many items are in the list {x}?", "Count the words: {x}",
    "Count the items: {x}", "How many things are there: {x}", "How long is this list: {x}",
    "How many items: {x}?",
    "How many words: {x}?", "What is the number of items in {x}?", "Count how many words there are: {x}",
)  # fmt: skip
_REVERSE = (
    "Reverse the list: {x}", "Reverse this list: {x}", "Reverse: {x}", "Turn the list around: {x}",
    "Reverse the order of {x}.",
    "List these in reverse order: {x}", "Write this list backwards: {x}", "Say these in reverse: {x}",
    "Invert the list {x}.",
    "Give me the reverse of {x}.", "Put these in reverse order: {x}", "Backwards, please: {x}",
)  # fmt: skip
_SORT = (
    "Sort: {x}", "Sort these words: {x}", "Sort alphabetically: {x}", "Sort the list {x}.",
    "Put in alphabetical order: {x}",
    "Sort these words alphabetically: {x}", "Order these words from a to z: {x}", "Sort this list: {x}",
    "Arrange alphabetically: {x}", "Please sort {x}.", "Alphabetical order of {x}?",
)  # fmt: skip
_SORT_NUMBERS = (
    "Sort: {x}", "Sort these numbers: {x}", "Sort the numbers {x}.", "Put these numbers in order: {x}",
    "Order these numbers: {x}",
    "Sort from small to large: {x}", "Sort {x} in ascending order.", "Sort the list {x}.",
    "Arrange in ascending order: {x}",
    "Please sort {x}.", "Order from smallest to largest: {x}",
)  # fmt: skip
_ITEM = (
    "What is the {n} item of {x}?", "What is the {n} word in this list: {x}", "Which word is {n}: {x}",
    "Give me the {n} item: {x}",
    "Give me the {n} item of the list {x}.", "The {n} word of: {x}", "Tell me the {n} word: {x}",
    "Which one is {n} in {x}?",
    "Take the {n} item from {x}.", "What comes {n} in the list {x}?",
    "From this list, give the {n} item: {x}", "{n} item of {x}?",
)  # fmt: skip


def _words(rng: random.Random, split: Split, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        roll = rng.random()
        if roll < 0.8:
            found[worlds.word(rng, split)] = None
        elif roll < 0.9:
            found[worlds.person(rng, split)] = None
        else:
            found[worlds.COUNTRIES.pick(rng, split)] = None
    return list(found)


def _separate(rng: random.Random, items: list[str]) -> str:
    return (
        ", ".join(items)
        if rng.random() < 0.75
        else listing(rng, items)
        if rng.random() < 0.6
        else " ".join(items)
    )


def _text_to_repeat(rng: random.Random, split: Split) -> str:
    parts: list[str] = []
    for _ in range(worlds.between(rng, 1, 7)):
        roll = rng.random()
        if roll < 0.68:
            parts.append(worlds.word(rng, split))
        elif roll < 0.78:
            parts.append(worlds.digits(rng, split, 1, 6))
        elif roll < 0.84:
            parts.append(worlds.person(rng, split))
        elif roll < 0.88:
            parts.append(worlds.code(rng, split))
        elif roll < 0.92:
            parts.append(worlds.city(rng, split))
        elif roll < 0.95:
            parts.append(worlds.word(rng, split).upper())
        elif roll < 0.97:
            parts.append(worlds.file_name(rng, split))
        else:
            parts.append(worlds.email(rng, split))
    text = choose(rng, (" ", " ", " ", " ", ", ", "-", " / ")).join(parts)
    if rng.random() < 0.15:
        text = text[0].upper() + text[1:] + choose(rng, (".", "!", "?"))
    return text


def word_to_spell(rng: random.Random, split: Split, longest: int) -> str:
    """A short word. Known words are all spelled in training, so a held-out one is always coined."""
    while True:
        if split is Split.TRAIN and rng.random() < 0.5:
            found = choose(rng, worlds.WORDS.train if rng.random() < 0.8 else worlds.NAMES.train)
        else:
            found = worlds.coined_word(rng, split, 2)
            if rng.random() < 0.1:
                found = found.capitalize()
        if 3 <= len(found) <= longest:
            return found


def _different_first_letters(rng: random.Random, split: Split, count: int) -> list[str]:
    by_letter: dict[str, str] = {}
    while len(by_letter) < count:
        found = worlds.coined_word(rng, split, 2)
        if rng.random() < 0.6:
            # Known words of the training side are used on both: what is held out is the coined words and the
            # list.
            found = choose(rng, worlds.WORDS.train)
        by_letter.setdefault(found[0], found)
    return rng.sample(list(by_letter.values()), count)


def labelled(rng: random.Random, split: Split, label: str) -> list[Message]:
    """One request of a kind and its answer."""
    if label == "repeat":
        text = _text_to_repeat(rng, split)
        return [user(fill(rng, _REPEAT, x=text)), assistant(text)]
    if label == "spell":
        found = word_to_spell(rng, split, 8)
        return [user(fill(rng, _SPELL, x=found)), assistant("-".join(found))]
    if label == "spell backwards":
        found = word_to_spell(rng, split, 5)
        return [user(fill(rng, _SPELL_BACKWARDS, x=found)), assistant("-".join(reversed(found)))]
    if label == "count":
        return _counting(rng, split)
    if label == "how many":
        items = _words(rng, split, worlds.between(rng, 2, 8))
        return [user(fill(rng, _HOW_MANY, x=_separate(rng, items))), assistant(str(len(items)))]
    if label == "reverse":
        items = _words(rng, split, worlds.between(rng, 2, 6))
        if rng.random() < 0.25:
            items = [str(worlds.whole(rng)) for _ in items]
        return [user(fill(rng, _REVERSE, x=_separate(rng, items))), assistant(", ".join(reversed(items)))]
    if label == "sort":
        return _sorting_words(rng, split)
    if label == "sort numbers":
        return _sorting_numbers(rng, split)
    items = _words(rng, split, worlds.between(rng, 2, 6))
    index = worlds.between(rng, -1, len(items) - 1)
    text = fill(rng, _ITEM, n="last" if index < 0 else ORDINALS[index], x=_separate(rng, items))
    return [user(text), assistant(items[index])]


def _counting(rng: random.Random, split: Split) -> list[Message]:
    while True:
        low = worlds.between(rng, 0, 20) if rng.random() < 0.7 else worlds.between(rng, 0, 200)
        high = low + worlds.between(rng, 2, 11)
        down = rng.random() < 0.2
        if allowed("range", f"{low} {high} {down}", split):
            break
    numbers = ", ".join(str(number) for number in range(low, high + 1))
    if down:
        numbers = ", ".join(str(number) for number in range(high, low - 1, -1))
        return [user(fill(rng, _COUNT_DOWN, a=low, b=high)), assistant(numbers)]
    if low == 1 and rng.random() < 0.7:
        return [user(fill(rng, _COUNT_TO, b=high)), assistant(numbers)]
    return [user(fill(rng, _COUNT, a=low, b=high)), assistant(numbers)]


def _sorting_words(rng: random.Random, split: Split) -> list[Message]:
    while True:
        items = _different_first_letters(rng, split, worlds.between(rng, 2, 5))
        if allowed("sorted", " ".join(sorted(items)), split):
            return [user(fill(rng, _SORT, x=_separate(rng, items))), assistant(", ".join(sorted(items)))]


def _sorting_numbers(rng: random.Random, split: Split) -> list[Message]:
    while True:
        count = worlds.between(rng, 2, 5)
        numbers = rng.sample(range(100 if rng.random() < 0.5 else 1000), count)
        ordered = [str(number) for number in sorted(numbers)]
        if allowed("sorted", " ".join(ordered), split):
            text = fill(rng, _SORT_NUMBERS, x=_separate(rng, [str(number) for number in numbers]))
            return [user(text), assistant(", ".join(ordered))]


def _fragment_run(rng: random.Random, fragments: Sequence[str]) -> str:
    """Random entries of a vocabulary glued to words; one that holds a held-out word is drawn again."""
    while True:
        glued = []
        for _ in range(worlds.between(rng, 1, 5)):
            parts = [choose(rng, fragments).strip() for _ in range(worlds.between(rng, 1, 3))]
            glued.append("".join(parts))
        text = " ".join(" ".join(glued).split())
        if text and text.isprintable() and not any(held_out_anywhere(part) for part in text.split()):
            return text


def fragment_sample(rng: random.Random, fragments: Sequence[str]) -> Conversation:
    """Repeating runs of vocabulary entries, which are often no words at all; for training only."""
    messages: list[Message] = []
    for _ in range(worlds.between(rng, 2, 6)):
        text = _fragment_run(rng, fragments)
        messages += [user(fill(rng, _REPEAT, x=text)), assistant(text)]
    return Conversation("lists", tuple(messages))


# What is harder to learn is asked more often.
_PRACTISED = (*LABELS, "repeat", "repeat", "spell", "spell backwards", "spell backwards", "reverse")


def exchange(rng: random.Random, split: Split) -> list[Message]:
    """One request of any kind and its answer."""
    return labelled(rng, split, choose(rng, _PRACTISED))


def sample(rng: random.Random, split: Split, label: str = "") -> Conversation:
    """One request; in training often several in one conversation."""
    if label:
        return Conversation("lists", tuple(labelled(rng, split, label)), label=label)
    count = 1 if rng.random() < 0.4 else worlds.between(rng, 2, 6)
    return Conversation("lists", tuple(message for _ in range(count) for message in exchange(rng, split)))
