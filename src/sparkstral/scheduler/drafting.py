"""Which drafts a step verifies, and what came of them.

Owns the counts and the asking of the controller; must not know blocks or budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sparkstral.scheduler.request import Request
from sparkstral.speculative.controller import DraftRecord, DraftStep
from sparkstral.types import ModelRunnerOutput, SchedulerOutput


class Controller(Protocol):
    """As `DepthController` is; tests have simpler ones."""

    def wanted(self, record: DraftRecord, num_rows: int) -> int: ...

    def choose(self, available: Sequence[tuple[DraftRecord, int]], num_rows: int, limit: int) -> list[int]: ...

    def verified(self, record: DraftRecord, num_drafts: int, num_accepted: int) -> None: ...

    def took(self, step: DraftStep) -> None: ...


class Drafting:
    """Of one scheduler; without a controller nothing is drafted."""

    def __init__(self, controller: Controller | None, *, for_changed_logits: bool) -> None:
        """`for_changed_logits`: whether requests with penalties or biases have drafts too."""
        self._controller = controller
        self._for_changed_logits = for_changed_logits
        self.num_steps = 0
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    @property
    def is_on(self) -> bool:
        return self._controller is not None

    def wanted(self, request: Request, num_rows: int) -> int:
        """Drafts that the runner is to make for a request in a step in which `num_rows` sample."""
        return 0 if self._controller is None else self._controller.wanted(request.draft_record, num_rows)

    def choose(self, decoding: Sequence[Request], limit: int) -> list[tuple[int, ...]]:
        """The drafts of each request that the next step verifies, at most `limit` together."""
        if self._controller is None or not any(request.draft_token_ids for request in decoding):
            return [()] * len(decoding)
        drafts = [
            request.usable_drafts if self._for_changed_logits or not request.sampling.changes_logits else ()
            for request in decoding
        ]
        available = [
            (request.draft_record, len(each)) for request, each in zip(decoding, drafts, strict=True)
        ]
        depths = self._controller.choose(available, len(decoding), limit)
        return [each[:depth] for each, depth in zip(drafts, depths, strict=True)]

    def verified(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        if self._controller is not None:
            self._controller.verified(request.draft_record, num_drafts, num_accepted)

    def took(
        self, step: SchedulerOutput, result: ModelRunnerOutput, seconds: float, was_held_back: bool
    ) -> None:
        """`step` is over, and took so long since the one before it, or since there was work; see `DraftStep`."""
        rows = step.scheduled
        num_drafts = sum(row.num_drafts for row in rows)
        self.num_steps += num_drafts > 0
        if self._controller is None:
            return
        num_rows = sum(row.samples and len(row.token_ids) == 1 + row.num_drafts for row in rows)
        if num_rows == 0:
            return
        num_accepted = sum(max(0, len(result.sampled.get(row.request_id, ())) - 1) for row in rows)
        num_proposed = sum(map(len, result.drafts.values()))
        self._controller.took(
            DraftStep(
                num_rows,
                num_drafts,
                num_accepted,
                seconds if num_rows == len(rows) else None,
                result.proposing_s,
                num_proposed,
                was_held_back,
            )
        )
