"""What all protocols' wire objects have in common: strict types, and a policy for each field.

A field is supported, `Refused` by name, or `Ignored` with a word. Keys that the schema does not know are
kept, so that the answer can tell which ones changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError


@dataclass(frozen=True, slots=True)
class Ignored:
    """Marks a field that is accepted and changes nothing."""

    why: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "description": f"Accepted and ignored: {self.why}."}


@dataclass(frozen=True, slots=True)
class Mapped:
    """Marks a field that is understood, if not to the letter: `how` says what becomes of it."""

    how: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "description": f"Mapped: {self.how}."}


@dataclass(frozen=True, slots=True)
class Refused:
    """Marks a field that is not served; null and the `neutral` values, which ask for nothing, pass."""

    why: str
    neutral: tuple[Any, ...] = ()

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "description": f"Not supported: {self.why}."}


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse NaN and the infinities at any depth: they are no JSON, and no prompt could hold them as such."""
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise PydanticCustomError("sentence", "holds a number that is not finite, which is not JSON")
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_finite)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


KEY_ERROR = "key:"  # begins the type of errors at the key that follows

# Names of branches begin with @: so they can be told from keys in the place that pydantic gives of an error.
_BRANCHES: tuple[tuple[type, str], ...] = ((str, "@text"), (list, "@list"), (dict, "@object"))


def _branch(value: Any) -> str | None:
    return next((tag for kind, tag in _BRANCHES if isinstance(value, kind)), None)


def by_json_type(sentence: str) -> Discriminator:
    """Chooses a union's branch, tagged @text, @list or @object, by the value's own type.

    `sentence` says what is wrong with other types.
    """
    return Discriminator(_branch, custom_error_type="sentence", custom_error_message=sentence)


def by_key(key: str, known: Mapping[str, str]) -> Discriminator:
    """Chooses a union's branch by the text at `key` of an object; `known` gives the branch of each text."""

    def branch(value: Any) -> str | None:
        found = value.get(key) if isinstance(value, dict) else None
        return known.get(found) if isinstance(found, str) else None

    return Discriminator(
        branch,
        custom_error_type=KEY_ERROR + key,
        custom_error_message=f"must be one of {', '.join(known)}",
    )


class Wire(BaseModel):
    """A JSON object of the wire. Types are strict: "5" is no number, true is no number, 1.0 is no integer."""

    model_config = ConfigDict(strict=True, extra="allow")

    def without_effect(self) -> Iterator[str]:
        """The paths of all keys that were sent and change nothing, unknown or ignored; an index is []."""
        yield from self.model_extra or ()
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value is not None and any(isinstance(mark, Ignored) for mark in field.metadata):
                yield name
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Wire):
                    place = f"{name}[]" if isinstance(value, list) else name
                    yield from (f"{place}.{inner}" for inner in item.without_effect())
