"""Settings of another program, each with its reason; written as a shell script that says them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    flag: str
    value: str | None
    why: str

    @property
    def words(self) -> tuple[str, ...]:
        return (self.flag,) if self.value is None else (self.flag, self.value)


def as_array(name: str, options: Iterable[Option]) -> str:
    """A bash array, with each option's reason above it. Values may name variables of the script ($IP)."""
    lines = [f"{name}=("]
    for option in options:
        lines.append(f"  # {option.why}")
        lines.append("  " + " ".join(_quoted(word) for word in option.words))
    return "\n".join([*lines, ")"])


def _quoted(word: str) -> str:
    return f'"{word}"' if "$" in word else shlex.quote(word)
