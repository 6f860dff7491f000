"""The runner: what a request's sampling remembers, and faults that stay in their row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from sparkstral.model.config import EOS_TOKEN_ID
from sparkstral.runner.model_runner import DeviceError, ModelRunner
from sparkstral.structured.matcher import CompiledGrammar, GrammarError
from sparkstral.types import GrammarSpec, NewRequest, SamplingParams, ScheduledRequest, SchedulerOutput
from tests.support.context_model import ContextModel, greedy_continuation, logits_of, make_pool

GREEDY = SamplingParams(max_tokens=99, temperature=0, stop_token_ids=(EOS_TOKEN_ID,))
RANDOM = SamplingParams(max_tokens=99, temperature=2.0, stop_token_ids=(EOS_TOKEN_ID,), seed=11)
ALPHABET = (50, 51, 52)
GRAMMAR = GrammarSpec("fake")


class FakeMatcher:
    """Allows ALPHABET in order, one token a step, then ends in an error."""

    def __init__(self, num_seen: int) -> None:
        self.num_seen = num_seen

    def bitmask(self):
        if self.num_seen == len(ALPHABET):
            raise GrammarError("too complex")
        mask = torch.zeros(10, dtype=torch.int32).numpy()
        token = ALPHABET[self.num_seen]
        mask[token // 32] |= 1 << token % 32
        return mask

    def along(self, token_ids: Sequence[int]):
        assert not token_ids
        return [self.bitmask()]

    def advance(self, token_id: int) -> None:
        assert token_id == ALPHABET[self.num_seen]
        self.num_seen += 1


class FakeGrammar(CompiledGrammar):
    def __init__(self) -> None:
        pass

    def matcher(self, output_token_ids: Sequence[int]):
        if tuple(output_token_ids) != ALPHABET[: len(output_token_ids)]:
            raise GrammarError("not allowed here")
        return FakeMatcher(len(output_token_ids))


def make_runner(model: ContextModel | None = None, num_blocks: int = 16) -> ModelRunner:
    return ModelRunner(model or ContextModel(), make_pool(num_blocks, 4), 3, {GRAMMAR: FakeGrammar()}.__getitem__)


def block_ids(row: int) -> tuple[int, ...]:
    return tuple(range(1 + 4 * row, 5 + 4 * row))


def run(
    runner: ModelRunner,
    contexts: dict[str, list[int]],
    num_steps: int,
    params: SamplingParams = GREEDY,
    grammar: GrammarSpec | None = None,
    resumed_with: tuple[int, ...] = (),
) -> dict[str, list[int]]:
    """`num_steps` tokens for each context (all of it computed in the first step); extends the contexts."""
    sampled: dict[str, list[int]] = {request_id: [] for request_id in contexts}
    news = tuple(NewRequest(request_id, params, grammar, resumed_with) for request_id in contexts)
    num_computed = dict.fromkeys(contexts, 0)
    for step in range(num_steps):
        rows = []
        for row, (request_id, context) in enumerate(contexts.items()):
            begin = num_computed[request_id]
            rows.append(ScheduledRequest(request_id, tuple(context[begin:]), begin, block_ids(row), True))
            num_computed[request_id] = len(context)
        result = runner.execute(SchedulerOutput(step, tuple(rows), news if step == 0 else ()))
        assert not result.failures
        for request_id, token_ids in result.sampled.items():
            contexts[request_id].extend(token_ids)
            sampled[request_id].extend(token_ids)
    return sampled


def test_greedy_rows_follow_their_own_contexts():
    sampled = run(make_runner(), {"a": [1, 2, 3], "b": [4], "c": [1, 2, 4]}, 6)
    assert sampled["a"] == greedy_continuation([1, 2, 3], 6)
    assert sampled["b"] == greedy_continuation([4], 6)
    assert sampled["c"] == greedy_continuation([1, 2, 4], 6)


def test_a_request_that_comes_back_after_preemption_draws_on():
    whole = run(make_runner(), {"r": [1, 2, 3]}, 8, RANDOM)["r"]
    runner = make_runner()
    first = run(runner, {"r": [1, 2, 3]}, 3, RANDOM)["r"]
    rest = run(runner, {"r": [1, 2, 3, *first]}, 5, RANDOM, resumed_with=tuple(first))["r"]
    assert first + rest == whole
    assert whole != greedy_continuation([1, 2, 3], 8)


def test_a_request_without_a_seed_draws_by_its_id():
    unseeded = SamplingParams(max_tokens=99, temperature=2.0, stop_token_ids=(EOS_TOKEN_ID,))
    one = run(make_runner(), {"r": [1, 2, 3]}, 8, unseeded)
    assert one == run(make_runner(), {"r": [1, 2, 3]}, 8, unseeded)
    assert one["r"] != run(make_runner(), {"s": [1, 2, 3]}, 8, unseeded)["s"]


def test_a_grammar_goes_along_and_is_rebuilt_after_preemption():
    runner = make_runner()
    assert run(runner, {"r": [1]}, 3, RANDOM, GRAMMAR)["r"] == list(ALPHABET)
    resumed = run(runner, {"r": [1, 50]}, 2, GREEDY, GRAMMAR, resumed_with=(50,))
    assert resumed["r"] == [51, 52]


def test_a_grammar_that_gives_up_fails_its_request_alone():
    runner = make_runner()
    step = SchedulerOutput(
        1,
        (
            ScheduledRequest("stuck", (1, *ALPHABET), 0, block_ids(0), True),
            ScheduledRequest("fine", (1, 2), 0, block_ids(1), True),
        ),
        (NewRequest("stuck", GREEDY, GRAMMAR, ALPHABET), NewRequest("fine", GREEDY, None, ())),
    )
    result = runner.execute(step)
    assert result.failures["stuck"].code == "grammar"
    assert "too complex" in result.failures["stuck"].message
    assert result.sampled == {"fine": (int(logits_of([1, 2]).argmax()),)}


@pytest.mark.parametrize("samples", [True, False])
def test_a_grammar_that_refuses_what_was_said_before_a_preemption_fails_its_request_alone(samples: bool):
    runner = make_runner()
    step = SchedulerOutput(
        1,
        (
            ScheduledRequest("refused", (1, 99), 0, block_ids(0), samples),
            ScheduledRequest("fine", (1, 2), 0, block_ids(1), True),
        ),
        (NewRequest("refused", GREEDY, GRAMMAR, (99,)), NewRequest("fine", GREEDY, None, ())),
    )
    result = runner.execute(step)
    assert result.failures["refused"].code == "grammar"
    assert "not allowed here" in result.failures["refused"].message
    assert result.sampled == {"fine": (int(logits_of([1, 2]).argmax()),)}
    assert runner.execute(SchedulerOutput(2, (), finished_request_ids=("refused",))).failures == {}


def test_a_sick_row_fails_alone():
    runner = make_runner(ContextModel(sick_token=7))
    step = SchedulerOutput(
        1,
        (
            ScheduledRequest("sick", (1, 7), 0, block_ids(0), True),
            ScheduledRequest("fine", (1, 2), 0, block_ids(1), True),
        ),
        (NewRequest("sick", RANDOM, None, ()), NewRequest("fine", GREEDY, None, ())),
    )
    result = runner.execute(step)
    assert result.failures["sick"].code == "numerics"
    assert result.sampled == {"fine": (int(logits_of([1, 2]).argmax()),)}


def test_a_chunk_fills_the_cache_and_samples_nothing():
    model = ContextModel()
    runner = make_runner(model)
    new = (NewRequest("r", GREEDY, None, ()),)
    chunk = ScheduledRequest("r", (1, 2, 3), 0, block_ids(0), False)
    assert runner.execute(SchedulerOutput(1, (chunk,), new)).sampled == {}
    rest = ScheduledRequest("r", (4, 5), 3, block_ids(0), True)
    assert runner.execute(SchedulerOutput(2, (rest,))).sampled["r"] == (int(logits_of([1, 2, 3, 4, 5]).argmax()),)
    assert model.num_tokens_per_pass == [3, 2]


def test_an_empty_step_does_no_pass():
    model = ContextModel()
    result = make_runner(model).execute(SchedulerOutput(1, (), finished_request_ids=("never seen",)))
    assert result.sampled == {}
    assert model.num_tokens_per_pass == []


def test_a_lost_device_is_told_from_other_errors():
    model = ContextModel()
    runner = make_runner(model)
    step = SchedulerOutput(
        1, (ScheduledRequest("r", (1,), 0, block_ids(0), True),), (NewRequest("r", GREEDY, None, ()),)
    )
    model.error = torch.AcceleratorError("an illegal memory access was encountered")
    with pytest.raises(DeviceError, match="illegal memory access"):
        runner.execute(step)
    model.error = torch.OutOfMemoryError("no memory")
    with pytest.raises(torch.OutOfMemoryError):
        runner.execute(step)
