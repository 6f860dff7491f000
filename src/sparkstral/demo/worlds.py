"""What an exercise can be about: pools of things, split into those for training and those held out.

Owns: the split, the pools and the makers of values (numbers, codes, names, paths, dates). Knows nothing of
wordings, of conversations or of the model. The split of an item is a hash of its kind and text, so it never
depends on a seed.
"""


from __future__ import annotations

import functools
import json
import random
import zlib
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

from sparkstral.demo import words

_SALT = "sparkstral-493"
# The examples of the documentation and what a newcomer types first: always on the training side, whatever
# their kind.
_DOCUMENTED = frozenset(
    """
    sayhello hello hi hellothere hey whoareyou thankyou thanks whatisyourname whatcanyoudo whatissparkstral
    whatareyourlimits howareyou goodbye
    bye goodmorning tellmeajoke bonjour hallo hola ciao whichportdoyoulistenon howlongisyourcontext blue
    river apple banana red green cat dog world Ana Nora Alice Bob Tom Max Maria Oslo Lima Paris Berlin
    London Tokyo Rome Madrid get_weather weather get_current_weather get_time calculator search web_search
    read_file list_files send_email send_mail 48213 12345 1234
    """.split()
) | {"37 45", "2 2", "12 30", "1 10 False", "1 5 False"}
_HELD_OUT_ONE_IN = 10
_GLUED_SHARE = 0.2

T = TypeVar("T")


class Split(Enum):
    """Which side of the split a sample may use."""

    TRAIN = "train"
    HELD_OUT = "held_out"


def is_held_out(kind: str, item: str) -> bool:
    """Whether an item of a kind is kept out of training (one in ten, by a hash that no seed changes)."""
    if item in _DOCUMENTED:
        return False
    return zlib.crc32(f"{_SALT}/{kind}/{item}".encode()) % _HELD_OUT_ONE_IN == 0


def allowed(kind: str, item: str, split: Split) -> bool:
    """Whether an item may be used on this side of the split."""
    return is_held_out(kind, item) == (split is Split.HELD_OUT)


def text_key(text: str) -> str:
    """A wording without its case, spaces and punctuation: variants of one wording fall on one side of the
    split."""
    return "".join(c for c in text.lower() if c.isalnum())


def choose(rng: random.Random, items: Sequence[T]) -> T:
    """One item, uniformly (several times faster than random.choice)."""
    return items[int(rng.random() * len(items))]


def between(rng: random.Random, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


def several(rng: random.Random, items: Sequence[T], count: int) -> list[T]:
    """Different items in random order."""
    return rng.sample(items, count)


@functools.cache
def vocabulary() -> tuple[str, ...]:
    """The vocabulary's entries of ASCII letters alone; one that begins a word has its space."""
    path = Path(__file__).parent / "checkpoint" / "tekken.json"
    entries = (entry["token_str"] for entry in json.loads(path.read_text(encoding="utf-8"))["vocab"])
    return tuple(text for text in entries if text and text.isascii() and text.strip().isalpha())


@functools.cache
def _whole_words() -> tuple[str, ...]:
    return tuple(entry.strip() for entry in vocabulary() if entry[0] == " ")


def glued_word(rng: random.Random) -> str:
    """A word of the vocabulary, or a few of its entries glued to one, in lower case.

    For training only, so no held-out word is made. A model that has copied every entry of its vocabulary
    copies words that it has not seen; one that was trained on the pools alone says a word of theirs instead.
    """
    while True:
        if rng.random() < 0.4:
            made = choose(rng, _whole_words())
        else:
            made = "".join(choose(rng, vocabulary()).strip() for _ in range(between(rng, 1, 3)))
        if 2 < len(made) < 15 and not held_out_anywhere(made):
            return made.lower()


class Pool:
    """A list of things of one kind, with its two sides; in training some are glued words."""

    def __init__(self, kind: str, items: Sequence[str]) -> None:
        self.kind = kind
        unique = tuple(dict.fromkeys(items))
        self.train = tuple(item for item in unique if not is_held_out(kind, item))
        self.held_out = tuple(item for item in unique if is_held_out(kind, item))

    def side(self, split: Split) -> tuple[str, ...]:
        """The items of one side."""
        return self.held_out if split is Split.HELD_OUT else self.train

    def pick(self, rng: random.Random, split: Split) -> str:
        """One item of one side."""
        if split is Split.TRAIN and rng.random() < _GLUED_SHARE:
            made = glued_word(rng)
            return made.capitalize() if self.train[0][0].isupper() else made
        return choose(rng, self.side(split))


NAMES = Pool("name", words.FIRST_NAMES)
SURNAMES = Pool("surname", words.SURNAMES)
CITIES = Pool("city", words.CITIES + words.TWO_WORD_CITIES)
COLOURS = Pool("colour", words.COLOURS)
ANIMALS = Pool("animal", words.ANIMALS)
FOODS = Pool("food", words.FOODS)
NOUNS = Pool("noun", words.NOUNS)
ADJECTIVES = Pool("adjective", words.ADJECTIVES)
JOBS = Pool("job", words.JOBS)
COUNTRIES = Pool("country", words.COUNTRIES)
HOBBIES = Pool("hobby", words.HOBBIES)
DRINKS = Pool("drink", words.DRINKS)
LANGUAGES = Pool("language", words.LANGUAGES)
CURRENCIES = Pool("currency", words.CURRENCIES)
FOLDERS = Pool("folder", words.FOLDERS)
FILE_STEMS = Pool("stem", words.FILE_STEMS)
WORDS = Pool(
    "word",
    words.NOUNS
    + words.ADJECTIVES
    + words.ANIMALS
    + words.FOODS
    + words.COLOURS
    + words.HOBBIES
    + words.COMMON,
)


_POOLS = (
    NAMES, SURNAMES, CITIES, COLOURS, ANIMALS, FOODS, NOUNS, ADJECTIVES, JOBS, COUNTRIES, HOBBIES, DRINKS,
    LANGUAGES, CURRENCIES,
    FOLDERS, FILE_STEMS, WORDS,
)  # fmt: skip
_HELD_OUT_WORDS = frozenset(item.lower() for pool in _POOLS for item in pool.held_out)


def held_out_anywhere(text: str) -> bool:
    """Whether a word, bare of punctuation and case, is on the held-out side of any pool."""
    return text.strip(".,;:!?\"'()[]{}").lower() in _HELD_OUT_WORDS


def coined_word(rng: random.Random, split: Split, max_syllables: int = 3) -> str:
    """A pronounceable word that no dictionary holds; in training half of them are glued words."""
    while True:
        if split is Split.TRAIN and rng.random() < 0.4:
            made = glued_word(rng)
        else:
            count = 2 if rng.random() < 0.7 else between(rng, 1, max_syllables)
            parts = [choose(rng, words.ONSETS) + choose(rng, words.VOWELS) for _ in range(count)]
            made = "".join(parts) + choose(rng, words.CODAS)
        if len(made) > 2 and allowed("coined", made, split):
            return made


def word(rng: random.Random, split: Split) -> str:
    """A word, known or coined."""
    return WORDS.pick(rng, split) if rng.random() < 0.65 else coined_word(rng, split)


def phrase_of(rng: random.Random, split: Split, low: int, high: int) -> str:
    """Some words in a row."""
    return " ".join(word(rng, split) for _ in range(between(rng, low, high)))


def person(rng: random.Random, split: Split) -> str:
    """A first name, known or coined."""
    return NAMES.pick(rng, split) if rng.random() < 0.7 else coined_word(rng, split).capitalize()


def full_name(rng: random.Random, split: Split) -> str:
    """A first name, sometimes with a surname."""
    first = person(rng, split)
    return first if rng.random() < 0.6 else f"{first} {SURNAMES.pick(rng, split)}"


def city(rng: random.Random, split: Split) -> str:
    """A city, known or coined."""
    return CITIES.pick(rng, split) if rng.random() < 0.8 else coined_word(rng, split).capitalize()


def digits(rng: random.Random, split: Split, low: int, high: int) -> str:
    """A number in digits, of low to high digits, without a leading zero; long ones are split by their
    value."""
    while True:
        count = between(rng, low, high)
        value = str(between(rng, 10 ** (count - 1), 10**count - 1))
        if count < 4 or allowed("digits", value, split):
            return value


def code(rng: random.Random, split: Split) -> str:
    """A reference such as A-1234, kr77x or QZ4821."""
    while True:
        letters = "".join(choose(rng, "ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(between(rng, 1, 3)))
        number = str(between(rng, 10, 99999))
        value = letters + choose(rng, ("-", "", "", "_")) + number
        if rng.random() < 0.2:
            value = value.lower()
        if allowed("code", value, split):
            return value


def email(rng: random.Random, split: Split) -> str:
    """A mail address at a domain reserved for examples."""
    first = person(rng, split).lower()
    last = SURNAMES.pick(rng, split).lower()
    local = choose(
        rng, (first, f"{first}.{last}", last, f"{first[0]}{last}", f"{first}{between(rng, 1, 99)}")
    )
    return f"{local}@{choose(rng, words.MAIL_DOMAINS)}"


def file_name(rng: random.Random, split: Split) -> str:
    """A file name without its folder."""
    stem = FILE_STEMS.pick(rng, split) if rng.random() < 0.6 else word(rng, split)
    if rng.random() < 0.35:
        stem += choose(rng, ("_", "-")) + (
            word(rng, split) if rng.random() < 0.6 else str(between(rng, 1, 2030))
        )
    return f"{stem}.{choose(rng, words.FILE_EXTENSIONS)}"


def folder(rng: random.Random, split: Split) -> str:
    """A folder, one or two levels."""
    name = FOLDERS.pick(rng, split) if rng.random() < 0.6 else word(rng, split)
    if rng.random() < 0.3:
        name += "/" + word(rng, split)
    return choose(rng, ("", "", "", "/")) + name


def path(rng: random.Random, split: Split) -> str:
    """A file name, sometimes in a folder."""
    name = file_name(rng, split)
    return name if rng.random() < 0.5 else f"{folder(rng, split)}/{name}"


def date(rng: random.Random, split: Split) -> str:
    """A date as YYYY-MM-DD."""
    while True:
        value = f"{between(rng, 2020, 2032)}-{between(rng, 1, 12):02d}-{between(rng, 1, 28):02d}"
        if allowed("date", value, split):
            return value


def clock(rng: random.Random) -> str:
    """A time of day as HH:MM."""
    return f"{between(rng, 0, 23):02d}:{between(rng, 0, 59):02d}"


def whole(rng: random.Random) -> int:
    """A whole number from 0 to 999, short ones as often as long ones."""
    return between(rng, 0, 10 ** between(rng, 1, 3) - 1)


def decimal(rng: random.Random) -> float:
    """A number with one or two places that prints as it is read."""
    return round(between(rng, 1, 99999) / (10 if rng.random() < 0.6 else 100), 2) or 0.5
