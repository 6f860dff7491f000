"""Text to hide things in: prose, word salad, invented Latin, numbers, records, code, logs, one sentence over
and over.

Owns: endless paragraphs and their length in tokens, about. Must not hold anything that reads like a pass key.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sparkstral.demo import words, worlds
from sparkstral.demo.worlds import Split, choose

# One sentence over and over, with its characters per token.
_CLASSIC = (
    ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ", 2.8),
    ("The quick brown fox jumps over the lazy dog. ", 2.8),
    ("All work and no play makes Jack a dull boy. ", 3.4),
    ("Nothing of interest is written here. ", 3.7),
    ("This is filler text. It means nothing. ", 3.9),
)


def _prose(rng: random.Random, split: Split) -> str:
    noun, adjective = worlds.NOUNS.pick(rng, split), worlds.ADJECTIVES.pick(rng, split)
    other, verb = worlds.NOUNS.pick(rng, split), choose(rng, words.VERBS_PAST)
    form = worlds.between(rng, 0, 11)
    if form == 0:
        return f"The {adjective} {noun} {verb} the {other}."
    if form == 1:
        return f"{worlds.person(rng, split)} {verb} a {noun} near the {other}."
    if form == 2:
        return f"In {worlds.city(rng, split)} the {noun} was {adjective}."
    if form == 3:
        day, job = choose(rng, words.WEEKDAYS), worlds.JOBS.pick(rng, split)
        return f"Every {day} the {job} {verb} the {adjective} {noun}."
    if form == 4:
        return f"There were {worlds.whole(rng)} {noun}s in the {adjective} {other}."
    if form == 5:
        return f"{worlds.person(rng, split)} {choose(rng, words.ADVERBS)} {verb} the {noun} and the {other}."
    if form == 6:
        return f"Nobody {verb} the {noun} because the {other} was too {adjective}."
    if form == 7:
        return f"A {worlds.ANIMALS.pick(rng, split)} {verb} the {noun} in {choose(rng, words.MONTHS)}."
    if form == 8:
        return f"It was {adjective}, and the {noun} of {worlds.person(rng, split)} {verb} nothing."
    if form == 9:
        return (
            f"When the {noun} was {adjective}, {worlds.person(rng, split)} went to {worlds.city(rng, split)}."
        )
    if form == 10:
        return f"The {noun} is a {adjective} {other} made of {worlds.FOODS.pick(rng, split)}."
    return f'"Where is the {noun}?" asked {worlds.person(rng, split)}, but the {other} was gone.'


def _salad(rng: random.Random, split: Split) -> str:
    return worlds.phrase_of(rng, split, 4, 12)


def _latin(rng: random.Random, split: Split) -> str:
    text = " ".join(worlds.coined_word(rng, split) for _ in range(worlds.between(rng, 5, 11)))
    return text.capitalize() + "."


def _numbers(rng: random.Random, split: Split) -> str:
    return ", ".join(str(worlds.whole(rng)) for _ in range(worlds.between(rng, 5, 12)))


def _record(rng: random.Random, split: Split) -> str:
    return (
        f"id: {worlds.between(rng, 1, 99999)}, name: {worlds.full_name(rng, split)}, "
        f"city: {worlds.city(rng, split)}, item: {worlds.word(rng, split)}, amount: {worlds.decimal(rng)}"
    )


def _code(rng: random.Random, split: Split) -> str:
    a, b = worlds.word(rng, split), worlds.word(rng, split)
    return choose(
        rng,
        (
            f"def {a}_{b}(value):\n    return value + {worlds.whole(rng)}",
            f"{a} = {b}[{worlds.whole(rng)}]",
            f"if {a} > {worlds.whole(rng)}: print({b})",
            f"for {a[0]} in {b}: {a}.append({a[0]})",
            f"# {a} of the {b}",
            f'{{"{a}": {worlds.whole(rng)}, "{b}": true}}',
        ),
    )


def _log(rng: random.Random, split: Split) -> str:
    level = choose(rng, ("INFO", "WARNING", "ERROR", "DEBUG"))
    when = f"{worlds.date(rng, split)} {worlds.clock(rng)}"
    return f"{when} {level} {worlds.word(rng, split)}: {worlds.phrase_of(rng, split, 2, 4)}"


# Maker, separator, characters per token of the demo vocabulary (measured 2026-12-02, held within some 5 %).
_KINDS: tuple[tuple[Callable[[random.Random, Split], str], str, float], ...] = (
    (_prose, " ", 3.0), (_prose, " ", 3.0), (_prose, " ", 3.0), (_salad, " ", 2.7), (_salad, ". ", 2.6),
    (_latin, " ", 2.2),
    (_numbers, "\n", 1.0), (_record, "\n", 1.9), (_code, "\n", 2.3), (_log, "\n", 1.6),
)  # fmt: skip


def pieces(rng: random.Random, split: Split, approx_tokens: int) -> list[str]:
    """Pieces of filler that together have about so many tokens; each ends with its separator.

    The kind of text is drawn once, or anew for every stretch of a few hundred tokens.
    """
    found: list[str] = []
    total = 0.0
    mixed = rng.random() < 0.25
    classic = ""
    make, separator, characters_per_token = choose(rng, _KINDS)
    if rng.random() < 0.12:
        classic, characters_per_token = choose(rng, _CLASSIC)
    stretch = 0.0
    while total < approx_tokens:
        if mixed and not classic and total > stretch:
            make, separator, characters_per_token = choose(rng, _KINDS)
            stretch = total + worlds.between(rng, 60, 400)
        piece = classic or make(rng, split) + (separator if rng.random() < 0.93 else "\n")
        total += len(piece) / characters_per_token
        found.append(piece)
    return found
