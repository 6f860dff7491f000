"""Fill the tables of docs/api.md from the wire schemas: python -m tools.make_api_doc [--check].

Owns the text between `<!-- fields: NAME -->` and `<!-- end -->`; the rest of the file is written by hand. With --check
nothing is written, and the exit code is 1 when the file is stale.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import annotated_types
from pydantic.fields import FieldInfo

from sparkstral.api.app import BODIES
from sparkstral.api.wire import Ignored, Mapped, Refused, Wire

FILE = Path(__file__).parents[1] / "docs" / "api.md"
FIRST = ("model", "messages", "messages[]", "prompt", "input", "input[]")
NAMES = {str: "text", int: "integer", float: "number", bool: "boolean", dict: "object", type(None): ""}


def main() -> None:
    before = FILE.read_text(encoding="utf-8")
    after = filled(before)
    if "--check" not in sys.argv:
        FILE.write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit(f"{FILE} is stale: run python -m tools.make_api_doc")


def filled(text: str) -> str:
    """`text` with the tables of today."""
    bodies = {body.__name__: body for body in BODIES}
    out, is_table = [], False
    for line in text.splitlines():
        if line == "<!-- end -->":
            is_table = False
        if not is_table:
            out.append(line)
        if line.startswith("<!-- fields: "):
            out += _table(bodies[line.removeprefix("<!-- fields: ").removesuffix(" -->")])
            is_table = True
    return "\n".join(out) + "\n"


def _table(body: type[Wire]) -> list[str]:
    rows: dict[str, list[FieldInfo]] = {}
    num_objects: Counter[str] = Counter()  # kinds of object that may stand at a path
    for path, field in _fields(body, "", num_objects):
        rows.setdefault(path, []).append(field)
    lines = ["| field | values | |", "|---|---|---|"]
    for path, fields in sorted(rows.items(), key=lambda row: row[0].split("[")[0] not in FIRST):
        kinds = sorted({kind for field in fields for kind in _kinds(field) if kind})
        told = list(dict.fromkeys(filter(None, map(_mark, fields))))
        parent = path.rpartition(".")[0]
        if all(field.is_required() for field in fields):
            told.insert(0, "required" if len(fields) == num_objects[parent] else "required where its kind has it")
        lines.append(f"| `{path}` | {', '.join(kinds)} | {'; '.join(told)} |")
    return lines


def _fields(wire: type[Wire], place: str, num_objects: Counter[str]) -> Iterator[tuple[str, FieldInfo]]:
    """The fields of `wire`, which stands at `place`, and of all that may stand in them."""
    num_objects[place] += 1
    for name, field in wire.model_fields.items():
        path = f"{place}.{field.alias or name}".removeprefix(".")
        yield path, field
        for inner, is_listed in _wires(field.annotation, False):
            yield from _fields(inner, f"{path}{'[]' if is_listed else ''}", num_objects)


def _wires(annotation: Any, is_listed: bool) -> Iterator[tuple[type[Wire], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, Wire):
        yield annotation, is_listed
    is_listed = is_listed or typing.get_origin(annotation) is list
    for argument in typing.get_args(annotation):
        yield from _wires(argument, is_listed)


def _mark(field: FieldInfo) -> str:
    for mark in field.metadata:
        match mark:
            case Ignored(why):
                return f"**ignored**: {why}"
            case Refused(why, neutral):
                passes = ", ".join(f"`{json.dumps(value)}`" for value in neutral)
                return f"**refused**{f' unless {passes}' if passes else ''}: {why}"
            case Mapped(how):
                return f"**mapped**: {how}"
    return ""


def _kinds(field: FieldInfo) -> Iterator[str]:
    if any(isinstance(mark, Ignored | Refused) for mark in field.metadata):
        return
    yield from _of(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)


def _of(annotation: Any) -> Iterator[str]:
    """What a value may be, in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        inner, *marks = arguments
        limits = _limits(marks)
        for kind in _of(inner):
            yield f"{kind} {limits}" if limits and kind else kind
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            yield from _of(argument)
    elif origin is Literal:
        yield ", ".join(f"`{value}`" for value in arguments)
    elif origin is list:
        yield "list" if arguments[0] is not int else "list of integers"
    elif origin is dict or (isinstance(annotation, type) and issubclass(annotation, Wire)):
        yield "object"
    elif annotation is not Any:
        yield NAMES.get(annotation, "")


def _limits(marks: list[Any]) -> str:
    low = high = above = longest = None
    for mark in marks:
        for limit in getattr(mark, "metadata", [mark]):
            match limit:
                case annotated_types.Ge(ge=value):
                    low = value
                case annotated_types.Gt(gt=value):
                    above = value
                case annotated_types.Le(le=value):
                    high = value
                case annotated_types.MaxLen(max_length=value):
                    longest = value
    if longest is not None:
        return f"up to {longest:,}"
    if above is not None:
        return f"above {above:,}" if high is None else f"above {above:,}, up to {high:,}"
    if low is not None and high is not None:
        return f"{low:,} to {high:,}"
    return f"from {low:,}" if low is not None else ""


if __name__ == "__main__":
    main()
