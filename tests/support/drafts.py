"""Drafts for tests: a controller that never learns, and a proposer that knows `ContextModel`."""

from __future__ import annotations

from collections.abc import Sequence

from sparkstral.speculative.controller import DraftRecord, DraftStep
from sparkstral.speculative.proposer import StepContext
from sparkstral.types import NewRequest
from tests.support.context_model import VOCAB_SIZE, greedy_continuation

LETTER_A, LETTER_Z = 40 + ord("a"), 40 + ord("z")


class FixedDepth:
    """A controller that never learns: every draft that there is, up to `depth`."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def wanted(self, record: DraftRecord, num_rows: int) -> int:
        return self.depth

    def choose(self, available: Sequence[tuple[DraftRecord, int]], num_rows: int, limit: int) -> list[int]:
        chosen = []
        for _, num_drafts in available:
            chosen.append(min(num_drafts, self.depth, limit))
            limit -= chosen[-1]
        return chosen

    def verified(self, record: DraftRecord, num_drafts: int, num_accepted: int) -> None: ...

    def took(self, step: DraftStep) -> None: ...


class InformedProposer:
    """Guesses what `ContextModel` will say greedily, and errs where the text's length is a multiple of 4; after a
    letter it guesses the next of the alphabet, as the grammars of these tests want it."""

    reads_hidden = False

    def __init__(self) -> None:
        self.texts: dict[str, list[int]] = {}

    def begin(self, request: NewRequest) -> None:
        self.texts[request.request_id] = [*request.prompt_token_ids, *request.output_token_ids]

    def forget(self, request_id: str) -> None:
        self.texts.pop(request_id, None)

    def propose(self, step: StepContext) -> dict[str, tuple[int, ...]]:
        guesses = {}
        for row in step.scheduled:
            text = self.texts[row.request_id]
            text += step.sampled.get(row.request_id, ())
            if row.request_id in step.sampled:
                guesses[row.request_id] = self._guess(text, row.num_wanted_drafts)
        return guesses

    @staticmethod
    def _guess(text: list[int], count: int) -> tuple[int, ...]:
        if LETTER_A <= text[-1] < LETTER_Z:
            return tuple(text[-1] + 1 + i for i in range(count))
        guess = greedy_continuation(text, count)
        return tuple(
            token if (len(text) + i) % 4 else (token + 1) % VOCAB_SIZE for i, token in enumerate(guess, start=1)
        )
