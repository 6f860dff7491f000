"""One line of a plan, and who gives the lines that depend on the length of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sparkstral.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class PlanLine:
    """A part of the memory, its size, and where the size comes from."""

    name: str
    num_bytes: int
    how_known: str


class PassMemory(Protocol):
    """What passes of the model hold beside weights and cache."""

    @property
    def model(self) -> ModelConfig: ...

    @property
    def max_num_seqs(self) -> int: ...

    def lines(self, max_model_len: int) -> tuple[PlanLine, ...]:
        """With a longest request of `max_model_len` tokens."""
