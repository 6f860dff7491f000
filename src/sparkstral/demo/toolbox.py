"""Tools as a client offers them, and what a user may ask of them.

Owns: OfferedTool, the writing of a tool's JSON schema in the many ways that public APIs do it, a set of tools
in random order. The tools themselves are in tool_families.py (well-known ones) and tool_inventions.py (made
up on the spot).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkstral.demo import worlds
from sparkstral.demo.conversation import Tool
from sparkstral.demo.worlds import Split, choose

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A user's sentence and the arguments that follow from it."""

    text: str
    arguments: Arguments


@dataclass(frozen=True)
class Requests:
    """A user's sentence that asks for several calls of one tool, and their arguments in order."""

    text: str
    arguments: tuple[Arguments, ...]


@dataclass(frozen=True)
class OfferedTool:
    """A tool, its family (two tools of one family are never offered together), and makers of requests for
    it."""

    name: str
    family: str
    definition: Tool
    ask: Callable[[random.Random], Request]
    ask_many: Callable[[random.Random, int], Requests] | None = None


def parameter(
    rng: random.Random, kind: str, descriptions: Sequence[str] = (), **extra: object
) -> dict[str, Any]:
    """The schema of one parameter, with or without a description."""
    schema: dict[str, Any] = {"type": kind, **extra}
    if descriptions and rng.random() < 0.5:
        text = choose(rng, descriptions)
        if rng.random() < 0.5:
            return {"type": kind, "description": text, **extra}
        schema["description"] = text
    return schema


def define(
    rng: random.Random,
    name: str,
    descriptions: Sequence[str],
    parameters: dict[str, Any],
    required: Sequence[str],
) -> Tool:
    """A tool in OpenAI form. Its parameters keep their order; optional ones are not in `required`."""
    schema: dict[str, Any] = {"type": "object", "properties": parameters}
    if required or rng.random() < 0.5:
        schema["required"] = list(required)
    if rng.random() < 0.15:
        schema["additionalProperties"] = False
    function: dict[str, Any] = {"name": name}
    if rng.random() < 0.93:
        text = choose(rng, descriptions)
        roll = rng.random()
        function["description"] = text + "." if roll < 0.4 else text.lower() if roll < 0.5 else text
    function["parameters"] = schema
    return {"type": "function", "function": function}


def in_order(definition: Tool, arguments: Arguments) -> Arguments:
    """The arguments in the order of the schema, those not given left out."""
    return {
        key: arguments[key] for key in definition["function"]["parameters"]["properties"] if key in arguments
    }


def offered(rng: random.Random, tools: Sequence[OfferedTool]) -> tuple[Tool, ...]:
    """The definitions in random order."""
    definitions = [tool.definition for tool in tools]
    rng.shuffle(definitions)
    return tuple(definitions)


_RESULT_KEYS = (
    "status", "id", "count", "total", "name", "temperature", "condition", "humidity", "wind", "price", "city",
    "date",
    "time", "result", "value", "owner", "size", "color", "state", "level", "amount", "email", "title", "unit",
    "code",
    "speed", "room", "distance", "duration", "priority", "stock", "version", "address", "phone", "score",
    "rank",
)  # fmt: skip
_CONDITIONS = ("sunny", "cloudy", "rain", "snow", "fog", "windy", "clear", "storm", "light rain", "hail")
_STATES = (
    "ok",
    "done",
    "sent",
    "created",
    "deleted",
    "open",
    "closed",
    "pending",
    "active",
    "ready",
    "saved",
    "booked",
)
_FAILURES = (
    "not found", "permission denied", "timeout", "disk full", "no connection", "invalid {w}", "{w} not found",
    "unknown {w}", "rate limit reached", "service unavailable", "the {w} is locked", "no such {w}",
    "{w} is missing",
    "{w} already exists", "quota exceeded", "the {w} is offline", "bad {w}", "access to {w} refused",
)  # fmt: skip


def scalar(rng: random.Random, split: Split, key: str) -> Any:
    """A value that a tool may return under a key."""
    if key in (
        "temperature",
        "humidity",
        "wind",
        "count",
        "total",
        "size",
        "level",
        "speed",
        "stock",
        "score",
        "rank",
    ):
        return worlds.whole(rng)
    if key in ("price", "amount", "distance", "value"):
        return worlds.decimal(rng) if rng.random() < 0.6 else worlds.whole(rng)
    if key in ("status", "state"):
        return choose(rng, _STATES)
    if key == "condition":
        return choose(rng, _CONDITIONS)
    if key == "city":
        return worlds.city(rng, split)
    if key in ("name", "owner"):
        return worlds.full_name(rng, split)
    if key == "email":
        return worlds.email(rng, split)
    if key == "date":
        return worlds.date(rng, split)
    if key == "time":
        return worlds.clock(rng)
    if key in ("id", "code"):
        return worlds.code(rng, split) if rng.random() < 0.6 else worlds.whole(rng)
    roll = rng.random()
    if roll < 0.2:
        return worlds.whole(rng)
    if roll < 0.27:
        return roll < 0.235
    return worlds.phrase_of(rng, split, 1, 2)


def _result_key(rng: random.Random, split: Split) -> str:
    key = worlds.word(rng, split)
    return f"{key}_{choose(rng, _RESULT_KEYS)}" if rng.random() < 0.4 else key


def result_fields(rng: random.Random, split: Split, low: int = 1, high: int = 4) -> dict[str, Any]:
    """A flat JSON object as a tool returns it."""
    keys = worlds.several(rng, _RESULT_KEYS, worlds.between(rng, low, high))
    if rng.random() < 0.25:
        keys[-1] = _result_key(rng, split)
    return {key: scalar(rng, split, key) for key in keys}


def failure(rng: random.Random, split: Split) -> tuple[str, str]:
    """The text of a failed result and the reason in it."""
    reason = choose(rng, _FAILURES).format(w=worlds.word(rng, split))
    form = worlds.between(rng, 0, 4)
    if form == 0:
        return json.dumps({"error": reason}), reason
    if form == 1:
        return json.dumps({"status": "error", "message": reason}), reason
    if form == 2:
        return json.dumps({"ok": False, "error": reason}), reason
    return ("Error: " if form == 3 else "error: ") + reason, reason


def shown(value: Any) -> str:
    """A JSON value as plain text: strings bare, the rest as JSON writes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tell(fields: dict[str, Any]) -> str:
    """The one way in which the model reports a JSON object: "city: Oslo, temperature: 4"."""
    return ", ".join(f"{key}: {shown(value)}" for key, value in fields.items())


def success(rng: random.Random, split: Split) -> tuple[str, str]:
    """The text of a good result and the answer that reports it."""
    roll = rng.random()
    if roll < 0.6:
        fields = result_fields(rng, split)
        text = json.dumps(fields, ensure_ascii=False, indent=2 if rng.random() < 0.05 else None)
        return text, tell(fields)
    if roll < 0.75:
        text = str(worlds.whole(rng)) if rng.random() < 0.6 else str(worlds.decimal(rng))
    elif roll < 0.85:
        items = [worlds.word(rng, split) for _ in range(worlds.between(rng, 2, 4))]
        return json.dumps(items), ", ".join(items)
    elif roll < 0.93:
        text = (
            f"{worlds.between(rng, -20, 40)} {choose(rng, ('C', 'F', 'degrees'))}, {choose(rng, _CONDITIONS)}"
        )
    else:
        text = worlds.phrase_of(rng, split, 2, 6).capitalize() + "."
    return text, text
