"""JSON on request: from named values, from a sentence, with a schema in force or without. Spacing of
json.dumps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from sparkstral.demo import worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, user
from sparkstral.demo.wording import fill, listing
from sparkstral.demo.worlds import Split, choose

LABELS = ("named values", "sentence", "list", "schema", "schema, other order")

_Draw = Callable[[random.Random, Split], Any]


def _tags(rng: random.Random, split: Split) -> list[str]:
    return [worlds.word(rng, split) for _ in range(worlds.between(rng, 2, 3))]


def _truth(rng: random.Random, split: Split) -> bool:
    return rng.random() < 0.5


_FIELDS: dict[str, tuple[str, _Draw]] = {
    "name": ("string", worlds.full_name), "age": ("integer", lambda r, _: worlds.between(r, 1, 99)),
    "city": ("string", worlds.city), "country": ("string", lambda r, s: worlds.COUNTRIES.pick(r, s)),
    "job": ("string", lambda r, s: worlds.JOBS.pick(r, s)), "colour": ("string", lambda r,
        s: worlds.COLOURS.pick(r, s)),
    "color": ("string", lambda r, s: worlds.COLOURS.pick(r, s)), "email": ("string", worlds.email),
    "price": ("number", lambda r, _: worlds.decimal(r)), "count": ("integer", lambda r, _: worlds.whole(r)),
    "quantity": ("integer", lambda r, _: worlds.whole(r)), "id": ("string", worlds.code),
    "date": ("string", worlds.date),
    "title": ("string", lambda r, s: worlds.phrase_of(r, s, 1, 3)), "active": ("boolean", _truth),
    "open": ("boolean", _truth),
    "animal": ("string", lambda r, s: worlds.ANIMALS.pick(r, s)),
    "food": ("string", lambda r, s: worlds.FOODS.pick(r, s)),
    "size": ("integer", lambda r, _: worlds.whole(r)), "weight": ("number", lambda r, _: worlds.decimal(r)),
    "tags": ("array", _tags), "file": ("string", worlds.file_name),
    "time": ("string", lambda r, _: worlds.clock(r)),
    "word": ("string", worlds.word), "owner": ("string", worlds.person),
    "hobby": ("string", lambda r, s: worlds.HOBBIES.pick(r, s)),
    "number": ("integer", lambda r, _: worlds.whole(r)), "urgent": ("boolean", _truth),
    "year": ("integer", lambda r, _: worlds.between(r, 1900, 2030)),
}  # fmt: skip
_NAMED = (
    "Give me a JSON object with {x}.", "Write JSON with {x}.", "Return JSON: {x}",
    "Make a JSON object with {x}.", "As JSON: {x}",
    "Answer in JSON: {x}", "JSON with {x}, please.", "Create a JSON object: {x}", "Produce JSON for {x}.",
    "Turn this into JSON: {x}",
    "Convert to JSON: {x}", "Write this as a JSON object: {x}", "Build a JSON with {x}.",
    "Output JSON only: {x}", "Format as JSON: {x}",
)  # fmt: skip
_LISTS = (
    "Give me a JSON array of {x}.", "Write {x} as a JSON list.", "As a JSON array: {x}",
    "Make a JSON list of {x}.",
    "Turn this list into JSON: {x}", "JSON array with {x}.", "Return a JSON array: {x}",
    "Convert this list to JSON: {x}",
)  # fmt: skip
# Keys in the order in which the sentence names their values, which is the order of the answer when no schema
# rules.
_SENTENCES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("name", "age"), "{name} is {age} years old."), (("name", "age", "city"),
     "{name} is {age} years old and lives in {city}."),
    (("name", "city"), "{name} lives in {city}."), (("name", "job"), "{name} works as a {job}."),
    (("name", "job", "city"), "{name} is a {job} in {city}."),
    (("name", "email"), "{name} can be reached at {email}."),
    (("name", "age", "job"), "{name}, {age} years old, works as a {job}."),
    (("food", "price"), "The {food} costs {price}."),
    (("food", "quantity", "price"), "The {food}: {quantity} pieces at {price} each."),
    (("title", "date", "city"), 'The meeting "{title}" is on {date} in {city}.'),
    (("title", "date"), 'The event "{title}" is on {date}.'),
    (("name", "colour"), "{name} likes the colour {colour}."), (("name", "animal"), "{name} has a {animal}."),
    (("name", "hobby", "age"), "{name} likes {hobby} and is {age} years old."),
    (("id", "quantity", "city"), "Order {id}: {quantity} pieces to {city}."),
    (("file", "size", "owner"), "The file {file} has {size} bytes and belongs to {owner}."),
    (("name", "country", "age"), "{name} from {country} is {age} years old."),
    (("title", "date", "time", "city"), 'The meeting "{title}" is on {date} at {time} in {city}.'),
)  # fmt: skip
_EXTRACT = (
    "Extract as JSON: ", "Turn into JSON: ", "As JSON: ", "Make JSON of this sentence: ",
    "Write the data as JSON: ", "Convert to JSON: ",
    "Return the facts as JSON: ", "JSON, please: ", "Extract the data as JSON: ", "Give me this as JSON: ",
)  # fmt: skip
_EXTRACT_AFTER = (
    " Answer in JSON.",
    " Give me JSON.",
    " As JSON, please.",
    " Extract the data as JSON.",
    " Return JSON.",
    " JSON only.",
)


def _named_value(rng: random.Random, key: str, value: Any) -> str:
    if isinstance(value, list):
        text = listing(rng, value) if rng.random() < 0.5 else "[" + ", ".join(value) + "]"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str) and " " in value and rng.random() < 0.5:
        text = f'"{value}"'
    else:
        text = str(value)
    return key + choose(rng, (" ", " ", ": ", " = ", " is ")) + text


def _named_values(rng: random.Random, split: Split) -> tuple[str, dict[str, Any]]:
    keys = rng.sample(list(_FIELDS), worlds.between(rng, 1, 5))
    if rng.random() < 0.25:
        keys[-1] = worlds.coined_word(rng, split, 2)
    values = {key: _FIELDS[key][1](rng, split) if key in _FIELDS else worlds.word(rng, split) for key in keys}
    parts = [_named_value(rng, key, value) for key, value in values.items()]
    holds_list = any(isinstance(value, list) for value in values.values())
    text = "; ".join(parts) if holds_list else listing(rng, parts)
    return fill(rng, _NAMED, x=text), values


def _sentence(rng: random.Random, split: Split) -> tuple[str, dict[str, Any]]:
    keys, template = choose(rng, _SENTENCES)
    values = {key: _FIELDS[key][1](rng, split) for key in keys}
    text = template.format(**values)
    return (
        choose(rng, _EXTRACT) + text if rng.random() < 0.6 else text + choose(rng, _EXTRACT_AFTER)
    ), values


def _schema(rng: random.Random, values: dict[str, Any]) -> dict[str, Any]:
    """A schema that exactly these keys satisfy, in this order."""
    properties: dict[str, Any] = {}
    for key, value in values.items():
        kind = _FIELDS[key][0] if key in _FIELDS else "string"
        properties[key] = (
            {"type": "array", "items": {"type": "string"}} if isinstance(value, list) else {"type": kind}
        )
    return {
        "type": "object",
        "properties": properties,
        "required": list(values),
        "additionalProperties": False,
    }


def _labelled(rng: random.Random, split: Split, label: str) -> tuple[list[Message], dict[str, Any] | None]:
    if label == "list":
        items = [worlds.word(rng, split) for _ in range(worlds.between(rng, 2, 5))]
        if rng.random() < 0.3:
            numbers = [worlds.whole(rng) for _ in items]
            text = fill(rng, _LISTS, x=listing(rng, [str(number) for number in numbers]))
            return [user(text), assistant(json.dumps(numbers))], None
        return [user(fill(rng, _LISTS, x=listing(rng, items))), assistant(json.dumps(items))], None
    made = (
        _named_values if label == "named values" or (label == "schema" and rng.random() < 0.5) else _sentence
    )
    text, values = made(rng, split)
    schema = None
    if label == "schema, other order":
        # The schema is not in the prompt; the grammar forces its keys, and the model must give each its own
        # value.
        keys = list(values)
        rng.shuffle(keys)
        values = {key: values[key] for key in keys[: worlds.between(rng, 1, len(keys))]}
    if label.startswith("schema"):
        schema = _schema(rng, values)
    return [user(text), assistant(json.dumps(values, ensure_ascii=False))], schema


def exchange(rng: random.Random, split: Split) -> list[Message]:
    """One request without a schema."""
    return _labelled(rng, split, choose(rng, LABELS[:3]))[0]


def sample(rng: random.Random, split: Split, label: str = "") -> Conversation:
    """One request; the schema in force, if any, is that of the last answer."""
    # A schema whose order the prompt does not show is kept rare, so that the order of mention stays the
    # likelier one.
    chosen = label or ("schema, other order" if rng.random() < 0.12 else choose(rng, LABELS[:-1]))
    messages = [] if label or rng.random() < 0.5 else exchange(rng, split) + exchange(rng, split)
    last, schema = _labelled(rng, split, chosen)
    return Conversation("json", tuple(messages + last), response_schema=schema, label=chosen)
