"""Who guesses the next tokens: what a runner asks of it.

Owns the interface; no tensor is looked at here. A proposer's guesses never change an answer, only how fast it comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sparkstral.types import NewRequest, ScheduledRequest

if TYPE_CHECKING:
    from torch import Tensor

    from sparkstral.model.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class StepContext:
    """A step that the target model has computed: what a proposer may go by."""

    scheduled: Sequence[ScheduledRequest]
    sampled: Mapping[str, tuple[int, ...]]  # new tokens of each request: drafts that stand, then one more
    batch: ForwardBatch | None = None  # where the proposer reads `hidden`, rows in the order of `scheduled`
    hidden: Tensor | None = None  # [T, H]: the target's last states, normalised, as its head reads them


class Proposer(Protocol):
    """Used by the engine thread alone."""

    reads_hidden: bool  # whether `propose` needs `batch` and `hidden`

    def begin(self, request: NewRequest) -> None:
        """A request comes, or comes back after a preemption."""

    def forget(self, request_id: str) -> None:
        """It is over, or was preempted. One that was never there is no error."""

    def propose(self, step: StepContext) -> dict[str, tuple[int, ...]]:
        """Guesses of what follows the sampled tokens: of each request as many as it wants, or fewer."""
