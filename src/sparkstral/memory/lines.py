"""One line of a plan. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlanLine:
    """A part of the memory, its size, and where the size comes from."""

    name: str
    num_bytes: int
    how_known: str
