"""Any order of arrivals, steps, aborts and faults: every request ends once, with the tokens it would have had
alone.

The model is a function of the whole history as read back through the block tables (fake_engine), so
preemption, prefix hits, chunks and blocks in other hands all show in the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from sparkstral.kv_cache.invariants import check
from sparkstral.kv_cache.manager import BlockTable, KvCacheManager
from sparkstral.scheduler.request import Request
from sparkstral.scheduler.scheduler import Scheduler
from sparkstral.types import Failure, FinishReason, GenerationRequest, SchedulerOutput
from tests.support.drafts import FixedDepth
from tests.unit.scheduler.fake_engine import (
    NAN,
    FakeEngine,
    good_guess,
    make_request,
    uninterrupted,
)

MAX_MODEL_LEN = 24
SETTINGS = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True)
NO_SHRINKING = settings(SETTINGS, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False)
FAULTS = st.sampled_from([None, None, None, "silent", NAN, Failure("grammar", "no token fits")])
REQUESTS = (
    st.builds(  # prompts of few kinds: prefixes of one another, and others that part from them in the middle
        lambda length, variant, *args: make_request(
            "", [p if p < 5 else p + variant for p in range(length)], *args
        ),
        st.integers(0, MAX_MODEL_LEN),
        st.integers(0, 2),
        st.integers(0, 20),
        st.sampled_from([(), (1, 2, 3)]),
        st.sampled_from(["", "", "other"]),
        st.sampled_from([0, 0, -1, 3]),
    )
)


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, GenerationRequest] = {}
        self.plan: SchedulerOutput | None = None

    @initialize(
        num_blocks=st.integers(13, 22),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(1, 12),
        overlaps=st.booleans(),
        depth=st.sampled_from([0, 0, 1, 2, 5]),
    )
    def start(self, num_blocks: int, max_num_seqs: int, spare_tokens: int, overlaps: bool, depth: int) -> None:
        self.overlaps = overlaps
        self.engine = FakeEngine(
            num_blocks=num_blocks,
            block_size_tokens=2,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            max_model_len=MAX_MODEL_LEN,
            controller=FixedDepth(depth) if depth else None,
            guess=good_guess,
        )

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=4))
    def add(self, requests: list[GenerationRequest]) -> None:
        for unnamed in requests:
            request = replace(unnamed, request_id=f"r{len(self.requests)}")
            length = len(request.prompt_token_ids)
            refusal = self.engine.add(request)
            can_be_served = 0 < length < MAX_MODEL_LEN and request.sampling.max_tokens > 0
            assert (refusal is None) == can_be_served
            if can_be_served:
                self.requests[request.request_id] = request

    @rule(data=st.data())
    def add_twice(self, data: st.DataObject) -> None:
        alive = [r for r in self.requests if r not in self.engine.ends]
        if alive:
            refusal = self.engine.add(self.requests[data.draw(st.sampled_from(alive))])
            assert refusal is not None
            assert refusal.failure is not None

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.requests:
            request_id = data.draw(st.sampled_from(sorted(self.requests)))
            has_ended = request_id in self.engine.ends
            ended = self.engine.abort(request_id)
            assert (ended is None) == has_ended
            assert ended is None or ended.finish_reason is FinishReason.ABORTED

    @rule(faults=st.lists(FAULTS, min_size=1, max_size=6), data=st.data())
    def steps(self, faults: list[Failure | str | None], data: st.DataObject) -> None:
        """Several steps; the last stays in flight, so that what comes next comes between schedule and
        update. With overlap the step after it is planned before it is taken in, where that can be."""
        for fault in faults:
            self.finish_step(fault, data)
            if self.plan is None:
                has_work = self.engine.scheduler.has_work
                self.plan = self.engine.scheduler.schedule()
                assert bool(self.plan.scheduled) == has_work, "where there is work there is progress"

    def finish_step(self, fault: Failure | str | None, data: st.DataObject | None) -> None:
        """Take in the step in flight; then the one that was planned ahead, if any, is in flight."""
        if self.plan is None:
            return
        plan, self.plan = self.plan, self.engine.scheduler.schedule_ahead() if self.overlaps else None
        if self.plan is not None:
            check(self.engine.cache)
        failures, silently_sick = {}, set()
        if fault is not None and plan.scheduled and data is not None:
            request_id = data.draw(st.sampled_from(plan.scheduled)).request_id
            if isinstance(fault, Failure):
                failures[request_id] = fault
            else:
                silently_sick.add(request_id)
        self.engine.finish(plan, self.engine.execute(plan, failures, silently_sick))
        if silently_sick:
            self.finish_all()
        for request_id in silently_sick:
            self.engine.run()
            self.serve_again(self.requests[request_id])

    def finish_all(self) -> None:
        while self.plan is not None:
            self.finish_step(None, None)

    def serve_again(self, request: GenerationRequest) -> None:
        """A sick prefix may spoil one request more, which finds it out; never two."""
        for _ in range(2):
            again = replace(request, request_id=f"r{len(self.requests)}")
            self.engine.add(again)
            self.requests[again.request_id] = again
            self.engine.run()
            if self.engine.last(again.request_id).failure is None:
                return
        raise AssertionError("a sick prefix is served again and again")

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.finish_all()
        self.engine.run()
        assert sorted(self.engine.ends) == sorted(self.requests), "every request ends, and once"
        for request_id, request in self.requests.items():
            alone = uninterrupted(request, MAX_MODEL_LEN)
            tokens, last = self.engine.tokens(request_id), self.engine.last(request_id)
            assert tokens == alone[: len(tokens)]
            if last.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert tokens == alone
        stats = self.engine.scheduler.stats()
        assert stats.num_free_blocks == self.engine.cache.pool.num_usable
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert self.engine.cache.tables == set()


def test_every_request_ends_once_with_the_tokens_it_would_have_had_alone() -> None:
    run_state_machine_as_test(SchedulerMachine, settings=SETTINGS)


# ---- the machine is able to fail: each defect below is found ------------------------------------------


def preempt_and_forget_the_output(scheduler: Scheduler, request: Request) -> None:
    correct_preempt(scheduler, request)
    del request.token_ids[request.num_prompt_tokens :]


def preempt_and_lose(scheduler: Scheduler, request: Request) -> None:
    correct_preempt(scheduler, request)
    scheduler._waiting.remove(request)


def skip_the_last_token_too(
    cache: KvCacheManager, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int
) -> int:
    num_computed_tokens = correct_skip_cached(cache, table, token_ids, num_computed_tokens)
    return num_computed_tokens + 1 if num_computed_tokens else 0


def commit_ahead(
    cache: KvCacheManager, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int
) -> None:
    correct_commit(cache, table, token_ids, len(token_ids))


def release_instead_of_discarding(cache: KvCacheManager, table: BlockTable) -> None:
    cache.release(table)


def append_past_the_end(request: Request, sampled: tuple[int, ...]) -> Any:
    request.token_ids += sampled
    is_over = len(request.token_ids) > request.max_total_tokens
    return sampled, FinishReason.LENGTH if is_over else None


def commit_drafts_too(scheduler: Scheduler, request: Request, num_computed_tokens: int) -> None:
    """As if all drafts of the step stood."""
    correct_scheduler_commit(scheduler, request, len(request.token_ids))


def grow_for_drafts_at_any_price(scheduler: Scheduler, request: Request, drafts: tuple[int, ...]) -> tuple[int, ...]:
    return drafts


correct_scheduler_commit = Scheduler._commit
correct_preempt = Scheduler._preempt
correct_skip_cached = KvCacheManager.skip_cached
correct_commit = KvCacheManager.commit


@pytest.mark.parametrize(
    ("owner", "name", "defect"),
    [
        (Scheduler, "_preempt", preempt_and_forget_the_output),
        (Scheduler, "_preempt", preempt_and_lose),
        (KvCacheManager, "skip_cached", skip_the_last_token_too),
        (KvCacheManager, "commit", commit_ahead),
        (KvCacheManager, "discard", release_instead_of_discarding),
        (Request, "append", append_past_the_end),
        (Scheduler, "_commit", commit_drafts_too),
        (Scheduler, "_with_room", grow_for_drafts_at_any_price),
    ],
)
def test_a_defect_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, defect: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, defect)
    with pytest.raises(Exception):  # noqa: B017, PT011  which one depends on where the defect first shows
        run_state_machine_as_test(SchedulerMachine, settings=NO_SHRINKING)
