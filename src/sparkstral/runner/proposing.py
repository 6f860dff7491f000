"""What a runner tells its proposer, and what it adds to a step's result."""

from __future__ import annotations

import time
from dataclasses import replace

from sparkstral.speculative.proposer import Proposer, StepContext
from sparkstral.types import ModelRunnerOutput, SchedulerOutput


def tell_proposer(proposer: Proposer | None, step: SchedulerOutput) -> None:
    """Who is over, then who is new: an id may be both."""
    if proposer is None:
        return
    for request_id in step.finished_request_ids:
        proposer.forget(request_id)
    for request in step.new_requests:
        proposer.begin(request)


def propose(proposer: Proposer | None, context: StepContext, result: ModelRunnerOutput) -> ModelRunnerOutput:
    """`result` with guesses of what follows."""
    if proposer is None:
        return result
    begin_s = time.perf_counter()
    drafts = proposer.propose(context)
    return replace(result, drafts=drafts, proposing_s=time.perf_counter() - begin_s)
