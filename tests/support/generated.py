"""Request bodies that schemathesis makes from our own OpenAPI document, right ones and wrong ones.

The document's bodies have some fifty fields each; what is made of all at once is slow to make, and wrong in its first
field. So most cases are made from one field's schema beside a body that is right without it, and some from the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def each_body(
    document: dict[str, Any], path: str, right: dict[str, Any], num_cases: int, use: Callable[[Any], None]
) -> int:
    """Calls `use` with bodies for `path`: of each field, and of the whole, `num_cases` right ones and as many wrong.
    Bytes are what is no JSON. Returns how many there were."""
    components = document["components"]["schemas"]
    (content,) = document["paths"][path]["post"]["requestBody"]["content"].values()
    whole = components[content["schema"]["$ref"].rpartition("/")[2]]
    return sum(
        _each(schema, components, mode, num_cases, use) for schema in _narrowed(whole, right) for mode in MODES
    )


def _narrowed(whole: dict[str, Any], right: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, field in whole["properties"].items():
        yield {
            "type": "object",
            "properties": {**{key: {"const": value} for key, value in right.items()}, name: field},
            "required": sorted({*right, name}),
            "additionalProperties": False,
        }
    yield whole


def _each(
    schema: dict[str, Any], components: dict[str, Any], mode: GenerationMode, num_cases: int, use: Callable[[Any], None]
) -> int:
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    operation = {"requestBody": body, "responses": {"200": {"description": "an answer"}}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "narrowed", "version": "1"},
        "paths": {"/": {"post": operation}},
        "components": {"schemas": _used(schema, components, {})},
    }
    num_used = 0

    @settings(
        max_examples=num_cases,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schemathesis.openapi.from_dict(document)["/"]["POST"].as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        nonlocal num_used
        num_used += 1
        use(case.body if isinstance(case.body, dict | list | str | int | float | bytes | None) else None)

    run()
    return num_used


def _used(value: Any, components: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The components that `value` refers to, by their names."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    name = value["$ref"].rpartition("/")[2] if isinstance(value, dict) and isinstance(value.get("$ref"), str) else None
    if name is not None and name not in found:
        found[name] = components[name]
        _used(components[name], components, found)
    for item in inner:
        _used(item, components, found)
    return found
