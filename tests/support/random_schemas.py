"""JSON Schemas at random: all that agents' tools and answers are described with."""

from __future__ import annotations

import random
import string
from typing import Any

TREE = {
    "type": "object",
    "properties": {"label": {"enum": ["x", "y"]}, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
    "required": ["label", "next"],
    "additionalProperties": False,
}


def whole_schema(seed: int) -> dict[str, Any]:
    """The schema of that number."""
    return {**random_schema(random.Random(seed)), "$defs": {"tree": TREE}}


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """All that agents' tools and answers are described with."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format"]
    nested = ["object", "object", "array", "anyOf", "ref"] if depth < 3 else []
    kind = rng.choice(["object"] * 7 + ["array", "anyOf", "string"] if depth == 0 else kinds + nested)
    match kind:
        case "string":
            low = rng.randrange(4)
            return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(8)}
        case "integer":
            low = rng.randint(-1000, 1000)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(500)}
        case "number":
            low = rng.randint(-50, 50)
            return {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.randint(1, 9)}
        case "boolean" | "null":
            return {"type": kind}
        case "enum":
            return {"enum": rng.sample(["a", "é日", 1, 2.5, None, True, [1], {"k": "v"}], rng.randint(1, 4))}
        case "const":
            return {"const": rng.choice(["x y", 7, False, [], '"quoted"'])}
        case "pattern":
            return {"type": "string", "pattern": rng.choice([r"^[A-Z]{2} [0-9]{3}$", r"^(yes|no)$", r"^a+b?$"])}
        case "format":
            return {"type": "string", "format": rng.choice(["date", "uuid", "ipv4"])}
        case "object":
            names = rng.sample([*string.ascii_lowercase, "größe", "a b", 'q"'], rng.randint(0, 4))
            properties = {name: random_schema(rng, depth + 1) for name in names}
            required = [name for name in names if rng.random() < 0.6]
            return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        case "array":
            low = rng.randrange(3)
            items = random_schema(rng, depth + 1)
            return {"type": "array", "items": items, "minItems": low, "maxItems": low + rng.randrange(3)}
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
        case _:
            return {"$ref": "#/$defs/tree"}
