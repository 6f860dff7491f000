"""The shapes of well-known tools: of one place, of one value, of several values.

Owns: how a family's words become a tool and its makers of requests. The families are in tool_families.py.
A name kept out of training is drawn for held-out samples only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from sparkstral.demo import worlds
from sparkstral.demo.toolbox import Arguments, OfferedTool, Request, Requests, define, in_order, parameter
from sparkstral.demo.wording import fill, listing
from sparkstral.demo.worlds import Split, allowed, choose

_PREFIXES = ("", "", "", "api_", "my_", "tool_", "do_", "svc_", "app_", "ext_", "v2_")


def tool_name(rng: random.Random, split: Split, names: Sequence[str]) -> str:
    """A name of the family in one of the usual spellings, on the right side of the split."""
    while True:
        name = choose(rng, names)
        roll = rng.random()
        if roll < 0.12:
            first, *rest = name.split("_")
            name = first + "".join(part.capitalize() for part in rest)
        elif roll < 0.2:
            name = name.replace("_", "-")
        elif roll < 0.35:
            name = choose(rng, _PREFIXES) + name
        elif roll < 0.42:
            name = f"{worlds.coined_word(rng, Split.TRAIN, 2)}_{name}"
        elif roll < 0.75 and split is Split.TRAIN:
            # A name that training never repeats: whoever calls it has to read it, and finds the tool by its description.
            parts = [worlds.glued_word(rng) for _ in range(worlds.between(rng, 0, 2))]
            parts += rng.sample(name.split("_"), worlds.between(rng, not parts, 1))
            rng.shuffle(parts)
            name = choose(rng, ("_", "_", "_", "-")).join(parts)
        if allowed("tool", name, split):
            return name


def about_places(
    rng: random.Random,
    split: Split,
    family: str,
    names: Sequence[str],
    descriptions: Sequence[str],
    one: Sequence[str],
    many: Sequence[str],
    optional: dict[str, Any],
    with_unit: Sequence[str] = (),
    with_days: Sequence[str] = (),
) -> OfferedTool:
    """A tool of one place, with options that a sentence may or may not mention."""
    key = choose(rng, ("city", "city", "location", "location", "place", "town", "city_name", "where", "q"))
    place = parameter(
        rng, "string", ("The city", "City name", "The name of the city", "Place", "City, e.g. Paris",
            "Location",
                        "The city and country", "Name of a town or city"),
    )  # fmt: skip
    chosen = {name: schema for name, schema in optional.items() if rng.random() < 0.35}
    parameters = {key: place, **chosen}
    if chosen and rng.random() < 0.15:
        parameters = {**chosen, key: place}
    definition = define(rng, tool_name(rng, split, names), descriptions, parameters, [key])

    def ask(rng: random.Random) -> Request:
        where = worlds.city(rng, split)
        arguments: Arguments = {key: where}
        units = next((schema["enum"] for name, schema in chosen.items() if "unit" in name), None)
        if units and with_unit and rng.random() < 0.4:
            unit = choose(rng, units)
            arguments[next(name for name in chosen if "unit" in name)] = unit
            return Request(fill(rng, with_unit, city=where, unit=unit), in_order(definition, arguments))
        if "days" in chosen and with_days and rng.random() < 0.5:
            arguments["days"] = worlds.between(rng, 2, 14)
            return Request(
                fill(rng, with_days, city=where, days=arguments["days"]), in_order(definition, arguments)
            )
        return Request(fill(rng, one, city=where), arguments)

    def ask_many(rng: random.Random, count: int) -> Requests:
        places = distinct(rng, lambda: worlds.city(rng, split), count)
        return Requests(fill(rng, many, cities=listing(rng, places)), tuple({key: where} for where in places))

    return OfferedTool(definition["function"]["name"], family, definition, ask, ask_many)


def distinct(rng: random.Random, draw: Callable[[], str], count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


def single(
    rng: random.Random,
    split: Split,
    family: str,
    names: Sequence[str],
    descriptions: Sequence[str],
    keys: Sequence[str],
    key_descriptions: Sequence[str],
    draw: Callable[[random.Random], Any],
    one: Sequence[str],
    many: Sequence[str] = (),
    kind: str = "string",
    optional: dict[str, Any] | None = None,
) -> OfferedTool:
    """A tool of one value; optional parameters are offered and never mentioned."""
    key = choose(rng, keys)
    extra = {name: schema for name, schema in (optional or {}).items() if rng.random() < 0.3}
    parameters = {key: parameter(rng, kind, key_descriptions), **extra}
    definition = define(rng, tool_name(rng, split, names), descriptions, parameters, [key])

    def ask(rng: random.Random) -> Request:
        value = draw(rng)
        return Request(fill(rng, one, x=value), {key: value})

    def ask_many(rng: random.Random, count: int) -> Requests:
        values: dict[Any, None] = {}
        while len(values) < count:
            values[draw(rng)] = None
        text = fill(rng, many, x=listing(rng, [str(value) for value in values]))
        return Requests(text, tuple({key: value} for value in values))

    return OfferedTool(definition["function"]["name"], family, definition, ask, ask_many if many else None)


def composed(
    rng: random.Random,
    split: Split,
    family: str,
    names: Sequence[str],
    descriptions: Sequence[str],
    parameters: dict[str, Any],
    draw: Callable[[random.Random], Arguments],
    sentences: Sequence[tuple[str, ...]],
    required: Sequence[str] | None = None,
) -> OfferedTool:
    """A tool of several values. Each sentence is (template, its parameters…); parameters not named are left
    out."""
    definition = define(
        rng,
        tool_name(rng, split, names),
        descriptions,
        parameters,
        list(parameters) if required is None else required,
    )

    def ask(rng: random.Random) -> Request:
        template, *mentioned = choose(rng, sentences)
        values = draw(rng)
        spoken = {
            key: listing(rng, value) if isinstance(value, list) else value for key, value in values.items()
        }
        return Request(
            fill(rng, (template,), **spoken), in_order(definition, {key: values[key] for key in mentioned})
        )

    return OfferedTool(definition["function"]["name"], family, definition, ask)
