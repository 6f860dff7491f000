"""Tools made up on the spot: a verb, a noun, and parameters of every JSON type.

Owns: the kinds of parameters (names, schema, values, how a sentence speaks of them) and the sentences. A
tool's verb and noun pair decides its side of the split, so every held-out tool has a schema that training
never had.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkstral.demo import words, worlds
from sparkstral.demo.toolbox import OfferedTool, Request, Requests, define, in_order
from sparkstral.demo.wording import fill, listing
from sparkstral.demo.worlds import Split, allowed, choose

Schema = dict[str, Any]
# A value and the text that speaks of it.
Spoken = tuple[Any, str]


@dataclass(frozen=True)
class Parameter:
    """One parameter of an invented tool."""

    name: str
    schema: Schema
    draw: Callable[[random.Random], Spoken]


def _same(value: Any) -> Spoken:
    return value, str(value)


def _quoted(value: str) -> Spoken:
    return value, f'"{value}"'


_STRINGS: tuple[tuple[tuple[str, ...], Callable[[random.Random, Split], Spoken]], ...] = (
    (("city", "location", "destination", "origin", "place"), lambda r, s: _same(worlds.city(r, s))),
    (("name", "customer", "owner", "recipient", "user", "author", "contact", "assignee"),
     lambda r, s: _same(worlds.full_name(r, s))),
    (("email", "to", "mail", "address"), lambda r, s: _same(worlds.email(r, s))),
    (("path", "file", "filename", "source_path", "target_path"), lambda r, s: _same(worlds.path(r, s))),
    (("folder", "directory"), lambda r, s: _same(worlds.folder(r, s))),
    (("id", "order_id", "ticket_id", "reference", "code", "sku", "serial", "item_id", "user_id"),
     lambda r, s: _same(worlds.code(r, s))),
    (("date", "due_date", "start_date", "day", "deadline"), lambda r, s: _same(worlds.date(r, s))),
    (("time", "start_time", "at"), lambda r, s: _same(worlds.clock(r))),
    (("color", "colour", "theme"), lambda r, s: _same(worlds.COLOURS.pick(r, s))),
    (("title", "subject", "label", "topic", "headline"), lambda r, s: _quoted(worlds.phrase_of(r, s, 1, 3))),
    (("message", "text", "note", "comment", "reason", "description"), lambda r,
     s: _quoted(worlds.phrase_of(r, s, 2, 5))),
    (("query", "keyword", "tag", "category", "group", "region", "channel", "room", "device"),
     lambda r, s: _same(worlds.word(r, s))),
    (("country",), lambda r, s: _same(worlds.COUNTRIES.pick(r, s))),
    (("language",), lambda r, s: _same(worlds.LANGUAGES.pick(r, s))),
    (("currency",), lambda r, s: _same(worlds.CURRENCIES.pick(r, s))),
)  # fmt: skip
# Parameters with enough values for four different ones on either side of the split.
_MANY_VALUES = ("city", "location", "destination", "origin", "place", "name", "customer", "owner",
    "recipient", "user",
                "author", "contact", "assignee", "email", "to", "mail", "path", "file", "filename", "folder",
                "directory",
                "id", "order_id", "ticket_id", "reference", "code", "sku", "serial", "item_id", "user_id",
                "query", "keyword",
                "tag", "category", "group", "region", "channel", "room", "device")  # fmt: skip
_INTEGERS = ("count", "limit", "quantity", "days", "age", "page", "number", "minutes", "hours", "seats",
    "width",
             "height", "volume", "level", "size", "year", "port", "retries", "floor", "copies",
             "duration")  # fmt: skip
_NUMBERS = ("amount", "price", "temperature", "weight", "ratio", "rate", "score", "speed", "length", "budget")
_BOOLEANS = ("urgent", "recursive", "notify", "public", "silent", "force", "verbose", "dry_run", "express",
    "shared",
             "enabled", "private", "overwrite", "confirm", "backup", "active", "locked", "archived",
             "gift_wrap")  # fmt: skip
_ENUMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("priority", ("low", "medium", "high")), ("size", ("small", "medium", "large")),
    ("format", ("pdf", "csv", "json")),
    ("status", ("open", "closed", "pending")), ("mode", ("auto", "manual", "off")),
    ("order", ("asc", "desc")),
    ("unit", ("celsius", "fahrenheit")), ("unit", ("km", "miles")),
    ("level", ("debug", "info", "warning", "error")),
    ("role", ("admin", "editor", "viewer")), ("plan", ("free", "basic", "premium")),
    ("shift", ("day", "night")),
    ("method", ("card", "cash", "transfer")), ("period", ("daily", "weekly", "monthly")),
    ("environment", ("dev", "staging", "production")), ("direction", ("north", "south", "east", "west")),
)  # fmt: skip
_ARRAYS = (
    "tags",
    "names",
    "items",
    "labels",
    "members",
    "recipients",
    "cities",
    "colors",
    "files",
    "topics",
    "guests",
)
_ID_ARRAYS = ("ids", "numbers", "pages", "rooms", "levels", "rows")
_OBJECTS = (
    ("address", ("street", "city")), ("range", ("min", "max")), ("size", ("width", "height")),
    ("person", ("name", "age")), ("position", ("x", "y")), ("customer", ("name", "email")),
    ("window", ("start", "end")), ("filter", ("field", "value")), ("owner", ("name", "city")),
    ("options", ("color", "count")), ("limits", ("low", "high")), ("target", ("name", "port")),
)  # fmt: skip
# How a sentence speaks of a parameter without its name.
_NATURAL = {
    "city": "in {x}", "location": "in {x}", "place": "in {x}", "destination": "to {x}", "origin": "from {x}",
    "country": "in {x}",
    "date": "on {x}", "day": "on {x}", "due_date": "by {x}", "deadline": "by {x}", "start_date": "from {x}",
    "time": "at {x}",
    "start_time": "at {x}", "at": "at {x}", "customer": "for {x}", "recipient": "for {x}", "user": "for {x}",
    "assignee": "for {x}",
    "email": "to {x}", "mail": "to {x}", "minutes": "for {x} minutes", "hours": "for {x} hours",
    "days": "for {x} days",
    "seats": "with {x} seats", "copies": "in {x} copies", "priority": "with {x} priority", "format": "as {x}",
    "language": "in {x}",
    "id": "{x}", "order_id": "{x}", "code": "{x}", "title": "called {x}", "label": "labelled {x}",
    "color": "in {x}", "folder": "in {x}",
    "path": "in {x}", "file": "in {x}", "room": "in room {x}", "count": "{x} times", "message": "saying {x}",
    "text": "saying {x}",
    "reason": "because {x}", "quantity": "{x} pieces", "price": "at a price of {x}", "amount": "over {x}",
    "tags": "tagged {x}",
    "guests": "with {x}", "members": "with {x}", "recipients": "for {x}", "temperature": "at {x} degrees",
    "group": "of group {x}",
    "owner": "of {x}", "plan": "on the {x} plan", "status": "with status {x}", "size": "of size {x}",
    "mode": "in {x} mode",
    "floor": "on floor {x}", "page": "on page {x}", "weight": "of {x} kg", "period": "{x}",
    "method": "by {x}",
}  # fmt: skip
_NOTES = (
    "The {n}",
    "{n} to use",
    "The {n} of the {o}",
    "Which {n}",
    "Value of {n}",
    "The {n}, as given by the user",
)


def _described(rng: random.Random, schema: Schema, name: str, noun: str) -> Schema:
    if rng.random() < 0.35:
        schema["description"] = choose(rng, _NOTES).format(n=name.replace("_", " "), o=noun)
    return schema


def _string(rng: random.Random, split: Split, noun: str) -> Parameter:
    names, draw = choose(rng, _STRINGS)
    name = choose(rng, names)
    return Parameter(name, _described(rng, {"type": "string"}, name, noun), lambda r: draw(r, split))


def _integer(rng: random.Random, noun: str) -> Parameter:
    name = choose(rng, _INTEGERS)
    return Parameter(name, _described(rng, {"type": "integer"}, name, noun), lambda r: _same(worlds.whole(r)))


def _number(rng: random.Random, noun: str) -> Parameter:
    name = choose(rng, _NUMBERS)
    return Parameter(
        name, _described(rng, {"type": "number"}, name, noun), lambda r: _same(worlds.decimal(r))
    )


def _boolean(rng: random.Random, noun: str) -> Parameter:
    name = choose(rng, _BOOLEANS)

    def draw(r: random.Random) -> Spoken:
        value = r.random() < 0.5
        return value, choose(r, ("true", "yes", "on") if value else ("false", "no", "off"))

    return Parameter(name, _described(rng, {"type": "boolean"}, name, noun), draw)


def _enum(rng: random.Random, split: Split, noun: str) -> Parameter:
    if rng.random() < 0.6:
        name, values = choose(rng, _ENUMS)
        options = list(values)
    else:
        name = choose(rng, ("type", "kind", "variant", "style", "profile", "state", "zone", "grade"))
        options = rng.sample(words.DOMAIN_WORDS, worlds.between(rng, 2, 4))
        if rng.random() < 0.4:
            options[0] = worlds.coined_word(rng, split)
    if rng.random() < 0.2:
        rng.shuffle(options)
    schema = _described(rng, {"type": "string", "enum": options}, name, noun)
    return Parameter(name, schema, lambda r: _same(choose(r, options)))


def _array(rng: random.Random, split: Split, noun: str) -> Parameter:
    if rng.random() < 0.3:
        name = choose(rng, _ID_ARRAYS)

        def draw_numbers(r: random.Random) -> Spoken:
            numbers = [worlds.whole(r) for _ in range(worlds.between(r, 1, 4))]
            return numbers, _spoken_list(r, [str(number) for number in numbers])

        items: Schema = {"type": "array", "items": {"type": "integer"}}
        return Parameter(name, _described(rng, items, name, noun), draw_numbers)
    name = choose(rng, _ARRAYS)

    def draw(r: random.Random) -> Spoken:
        if name in ("names", "members", "guests", "recipients"):
            values = [worlds.person(r, split) for _ in range(worlds.between(r, 1, 4))]
        elif name == "cities":
            values = [worlds.city(r, split) for _ in range(worlds.between(r, 1, 4))]
        elif name == "files":
            values = [worlds.file_name(r, split) for _ in range(worlds.between(r, 1, 4))]
        else:
            values = [worlds.word(r, split) for _ in range(worlds.between(r, 1, 4))]
        return values, _spoken_list(r, values)

    return Parameter(name, _described(rng, {"type": "array", "items": {"type": "string"}}, name, noun), draw)


def _spoken_list(rng: random.Random, values: list[str]) -> str:
    return f"[{', '.join(values)}]" if rng.random() < 0.3 else listing(rng, values)


def _field(rng: random.Random, split: Split, name: str) -> tuple[Schema, Callable[[random.Random], Any]]:
    if name in ("min", "max", "width", "height", "age", "x", "y", "count", "low", "high", "port"):
        return {"type": "integer"}, worlds.whole
    if name == "city":
        return {"type": "string"}, lambda r: worlds.city(r, split)
    if name == "name":
        return {"type": "string"}, lambda r: worlds.person(r, split)
    if name == "email":
        return {"type": "string"}, lambda r: worlds.email(r, split)
    if name in ("start", "end"):
        return {"type": "string"}, worlds.clock
    if name == "color":
        return {"type": "string"}, lambda r: worlds.COLOURS.pick(r, split)
    return {"type": "string"}, lambda r: worlds.word(r, split)


def _object(rng: random.Random, split: Split, noun: str) -> Parameter:
    name, fields = choose(rng, _OBJECTS)
    made = {field: _field(rng, split, field) for field in fields}
    schema: Schema = {"type": "object", "properties": {field: made[field][0] for field in fields}}
    if rng.random() < 0.6:
        schema["required"] = list(fields)

    def draw(r: random.Random) -> Spoken:
        value = {field: made[field][1](r) for field in fields}
        joiner = choose(r, (" and ", ", "))
        return value, joiner.join(f"{field} {item}" for field, item in value.items())

    return Parameter(name, _described(rng, schema, name, noun), draw)


def _parameter(rng: random.Random, split: Split, noun: str) -> Parameter:
    roll = rng.random()
    if roll < 0.36:
        return _string(rng, split, noun)
    if roll < 0.5:
        return _integer(rng, noun)
    if roll < 0.6:
        return _number(rng, noun)
    if roll < 0.71:
        return _boolean(rng, noun)
    if roll < 0.83:
        return _enum(rng, split, noun)
    if roll < 0.92:
        return _array(rng, split, noun)
    return _object(rng, split, noun)


_DESCRIPTIONS = (
    "{V} {a} {n}", "{V} the {n}", "{V} {a} {n} in the system", "Use this to {v} {a} {n}", "{V} {n}s",
    "{V} one {n}",
    "Tool to {v} {a} {n}", "Lets the user {v} {a} {n}", "{V} {a} {n} by its data", "Call this to {v} the {n}",
)  # fmt: skip
_OPENINGS = (
    "{V} the {n}", "{V} {a} {n}", "{V} {n}", "Please {v} the {n}", "I want to {v} {a} {n}",
    "Can you {v} the {n}",
    "I would like to {v} {a} {n}", "{V} this {n}", "Could you {v} {a} {n}", "We need to {v} the {n}",
    "{V} my {n}",
    "Now {v} the {n}", "Help me {v} {a} {n}",
)  # fmt: skip
_LINKS = (" with ", ": ", ", ", " using ", " with the following: ", ". ")


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def _tool_name(rng: random.Random, verb: str, noun: str) -> str:
    form = rng.random()
    if form < 0.55:
        return f"{verb}_{noun}"
    if form < 0.68:
        return f"{verb}{noun.capitalize()}"
    if form < 0.78:
        return f"{noun}_{verb}"
    if form < 0.86:
        return f"{verb}-{noun}"
    return f"{choose(rng, words.DOMAIN_WORDS)}_{verb}_{noun}" if form < 0.93 else f"{noun}{verb.capitalize()}"


def verb_and_noun(rng: random.Random, split: Split) -> tuple[str, str]:
    """What an invented tool does to what; the pair decides its side of the split."""
    while True:
        verb = choose(rng, words.TOOL_VERBS)
        noun = choose(rng, words.TOOL_NOUNS) if rng.random() < 0.8 else worlds.coined_word(rng, split, 2)
        if allowed("invention", f"{verb} {noun}", split):
            return verb, noun


def invent(rng: random.Random, split: Split, action: tuple[str, str] | None = None) -> OfferedTool:
    """A tool that nobody has seen, with one to five parameters."""
    verb, noun = action or verb_and_noun(rng, split)
    made: dict[str, Parameter] = {}
    wanted = choose(rng, (1, 1, 2, 2, 2, 3, 3, 4, 5))
    while len(made) < wanted:
        parameter = _parameter(rng, split, noun)
        made.setdefault(parameter.name, parameter)
    names = list(made)
    required = names if rng.random() < 0.4 else names[: worlds.between(rng, 1, len(names))]
    slots = {"v": verb, "V": verb.capitalize(), "n": noun, "a": _article(noun)}
    definition = define(
        rng,
        _tool_name(rng, verb, noun),
        [text.format(**slots) for text in _DESCRIPTIONS],
        {name: parameter.schema for name, parameter in made.items()},
        required,
    )

    def ask(rng: random.Random) -> Request:
        given = [name for name in names if name in required or rng.random() < 0.5]
        spoken = {name: made[name].draw(rng) for name in given}
        arguments = in_order(definition, {name: value for name, (value, _) in spoken.items()})
        if rng.random() < 0.25:
            rng.shuffle(given)
        return Request(_sentence(rng, slots, given, made, spoken), arguments)

    only = made[names[0]] if len(names) == 1 else None

    def ask_many(rng: random.Random, count: int) -> Requests:
        parameter = made[names[0]]
        values: dict[Any, str] = {}
        while len(values) < count:
            value, text = parameter.draw(rng)
            values[value] = text
        opening = fill(rng, ("{V} the {n}s with {p} {x}", "{V} these {n}s: {p} {x}",
            "{V} the {n}s of {p} {x}"),
                       **slots, p=parameter.name.replace("_", " "),
                       x=listing(rng, list(values.values())))  # fmt: skip
        return Requests(opening, tuple({parameter.name: value} for value in values))

    repeatable = only is not None and only.schema["type"] == "string" and only.name in _MANY_VALUES
    many = ask_many if repeatable else None
    return OfferedTool(definition["function"]["name"], f"{verb} {noun}", definition, ask, many)


def _sentence(
    rng: random.Random,
    slots: dict[str, str],
    given: Sequence[str],
    made: dict[str, Parameter],
    spoken: dict[str, Spoken],
) -> str:
    """The request in one of several styles: spoken labels, key=value, or JSON itself."""
    opening = fill(rng, _OPENINGS, **slots).rstrip(".?!")
    style = rng.random()
    if style < 0.06:
        return f"{opening}: {json.dumps({name: spoken[name][0] for name in given}, ensure_ascii=False)}"
    if style < 0.2:
        return (
            opening
            + choose(rng, (": ", " with "))
            + ", ".join(f"{name}={_bare(spoken[name])}" for name in given)
        )
    compound = any(made[name].schema["type"] in ("array", "object") for name in given)
    if style < 0.5:
        return _natural_sentence(rng, opening, given, made, spoken, "; " if compound else "")
    colon = choose(rng, (" ", " ", ": ", " = ", " is "))
    parts = [f"{made[name].name.replace('_', ' ')}{colon}{spoken[name][1]}" for name in given]
    joiner = choose(rng, ("; ", ". ") if compound else (", ", ", ", " and ", "; "))
    text = opening + choose(rng, _LINKS) + joiner.join(parts)
    return text if rng.random() < 0.5 else text + "."


def _natural_sentence(
    rng: random.Random,
    opening: str,
    given: Sequence[str],
    made: dict[str, Parameter],
    spoken: dict[str, Spoken],
    joiner: str,
) -> str:
    """Parameters spoken of without their names where that is clear, and by their names after that."""
    phrases: dict[str, str] = {}
    rest = []
    for name in given:
        pattern = _NATURAL.get(name, "")
        # Two people both "for" whom something is done could not be told apart.
        if pattern and pattern not in phrases and made[name].schema["type"] != "object":
            phrases[pattern] = pattern.format(x=spoken[name][1])
        else:
            rest.append(f"{name.replace('_', ' ')} {spoken[name][1]}")
    text = " ".join([opening, *phrases.values()])
    if rest:
        text += choose(rng, (", ", " with ", "; ")) + (joiner or choose(rng, (", ", "; ", " and "))).join(
            rest
        )
    return text if rng.random() < 0.5 or not phrases else text + choose(rng, ".?")


def _bare(spoken: Spoken) -> str:
    value, text = spoken
    return text if isinstance(value, (str, bool)) else json.dumps(value, ensure_ascii=False)
