"""What of a client's JSON Schema a grammar can hold an answer to.

Owns two readings of a schema: without keywords that ask for nothing, which every schema gets; and without those that
no grammar of ours can hold to, which one that is not `strict` gets, with the places of what was left out. Both only let
more through. Also tells schemas that no value ends. Must not know the grammar's text. Source: what llguidance 1.9
compiles; JSON Schema 2020-12, where a format that nobody knows says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

MAX_ROUNDS = 64  # each follows the references one step further
# That llguidance knows; a test compiles each.
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)  # fmt: skip
_NEVER_HELD = frozenset(
    (
        "uniqueItems", "not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames",
        "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems",
        "$dynamicRef", "$recursiveRef",
    )
)  # fmt: skip
_OF_NAMES = frozenset(("properties", "patternProperties", "$defs", "definitions"))  # name → schema
_OF_SCHEMAS = frozenset(("items", "prefixItems", "additionalItems", "additionalProperties", "allOf", "anyOf", "oneOf"))
_SAYS_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "propertyNames": (True, {}, {"type": "string"}),
    "uniqueItems": (False,),
    "minProperties": (0,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False,),
}
_NEEDS = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}

Schema = Mapping[str, Any]
Edit = Callable[[dict[str, Any], str], None]


def without_no_ops(schema: Schema) -> Schema:
    """The same without keywords that say nothing."""

    def edit(part: dict[str, Any], _: str) -> None:
        for key, values in _SAYS_NOTHING.items():
            if key in part and any(part[key] is value or part[key] == value for value in values):
                del part[key]
        for key, other in _NEEDS.items():
            if other not in part:
                part.pop(key, None)
        if "then" not in part and "else" not in part:
            part.pop("if", None)
        if isinstance(part.get("format"), str) and part["format"] not in FORMATS:
            del part["format"]

    edited: Schema = _edited(schema, "", edit)
    return edited


def loosened(schema: Schema, place: str, is_pattern: Callable[[str], bool]) -> tuple[Schema, list[str]]:
    """The same without what cannot be held to, and the places of that. `is_pattern` says whether a regular expression
    can be; `place` is the schema's own."""
    left_out: list[str] = []

    def edit(part: dict[str, Any], where: str) -> None:
        drop = [key for key in part if key in _NEVER_HELD]
        if isinstance(part.get("pattern"), str) and not is_pattern(part["pattern"]):
            drop.append("pattern")
        if not set(part.get("properties") or ()) <= set(part.get("required") or ()):
            drop += [key for key in ("minProperties", "maxProperties") if key in part]
        patterns = part.get("patternProperties")
        if isinstance(patterns, dict) and not all(map(is_pattern, patterns)):
            drop += [key for key in ("patternProperties", "additionalProperties") if key in part]  # the one is the rest
        for key in drop:
            del part[key]
            left_out.append(f"{where}.{key}")

    return _edited(schema, place, edit), left_out


def _edited(schema: Any, place: str, edit: Edit) -> Any:
    """A copy of the schema whose parts `edit` was shown, with their places; it may delete their keys."""
    if not isinstance(schema, Mapping):
        return schema
    part = dict(schema)
    edit(part, place)
    for key, value in part.items():
        where = f"{place}.{key}"
        if key in _OF_NAMES and isinstance(value, Mapping):
            part[key] = {name: _edited(inner, f"{where}.{name}", edit) for name, inner in value.items()}
        elif key in _OF_SCHEMAS and isinstance(value, list):
            part[key] = [_edited(inner, f"{where}[{i}]", edit) for i, inner in enumerate(value)]
        elif key in _OF_SCHEMAS:
            part[key] = _edited(value, where, edit)
    return part


def is_endless(schema: Schema) -> bool:
    """Whether no value can be true to the schema because every way through it leads back to itself. References that are
    no pointers into it are taken to lead to an end; so is, for the sake of time, all that is not found out in
    MAX_ROUNDS."""
    parts: dict[int, Any] = {id(schema): schema}  # the whole, and all that is referred to
    waiting: list[Any] = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, Mapping):
            waiting += item.values()
            target = _target(schema, item.get("$ref"))
            if target is not None:
                parts[id(target)] = target
    ends = dict.fromkeys(parts, False)
    for _ in range(MAX_ROUNDS):
        known = ends
        ends = {number: _has_end(part, schema, known) for number, part in parts.items()}
        if ends == known:
            return not ends[id(schema)]
    return False


def _has_end(part: Any, schema: Schema, ends: Mapping[int, bool]) -> bool:
    """Whether a value can be true to `part`, as far as is known of what is referred to."""
    if not isinstance(part, Mapping):
        return part is not False
    target = _target(schema, part.get("$ref"))
    if target is not None and not ends[id(target)]:
        return False
    needed = list(part.get("allOf") or ())
    if part.get("type") == "object" and isinstance(part.get("properties"), Mapping):
        needed += [inner for name, inner in part["properties"].items() if name in (part.get("required") or ())]
    if part.get("type") == "array" and part.get("minItems"):
        needed += [*(part.get("prefixItems") or (part.get("items"),))][:1]
    choices = [part[key] for key in ("anyOf", "oneOf") if part.get(key)]
    return all(_has_end(inner, schema, ends) for inner in needed) and all(
        any(_has_end(inner, schema, ends) for inner in choice) for choice in choices
    )


def _target(schema: Schema, reference: Any) -> Any:
    """The object that a pointer (`#/$defs/tree`) leads to, or None."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target: Any = schema
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target if isinstance(target, Mapping) else None
