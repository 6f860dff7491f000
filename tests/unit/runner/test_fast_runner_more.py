"""Penalties, biases and log probabilities: the fast runner gives what the plain one gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sparkstral.runner.fast_runner import FastRunner
from sparkstral.runner.model_runner import ModelRunner
from sparkstral.types import (
    UNSEEN,
    ModelRunnerOutput,
    NewRequest,
    SamplingParams,
    ScheduledRequest,
    SchedulerOutput,
    TokenLogprob,
)
from tests.support.context_model import VOCAB_SIZE
from tests.unit.runner.test_fast_runner import make_fast_runner
from tests.unit.runner.test_model_runner import GREEDY, RANDOM, block_ids, make_runner

PARAMS = {
    "plain": RANDOM,
    "presence and frequency": replace(GREEDY, presence_penalty=1.5, frequency_penalty=0.4),
    "repetition": replace(RANDOM, repetition_penalty=1.9),
    "bias": replace(GREEDY, logit_bias=((3, 4.0), (7, 3.9), (9, -2.0))),
    "all": replace(
        RANDOM, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=0.6, logit_bias=((3, 2.0),),
        num_logprobs=3, top_p=0.9,
    ),
    "log probabilities": replace(GREEDY, num_logprobs=20),
    "of the token alone": replace(RANDOM, num_logprobs=0),
}  # fmt: skip
PROMPTS = {"a": (1, 2, 3, 2), "b": (4,), "c": (3, 3, 3)}
NUM_TOKENS = 6


def new_request(name: str, params: SamplingParams, said: Sequence[int] = ()) -> NewRequest:
    return NewRequest(name, params, None, tuple(said), PROMPTS[name])


def row_of(index: int, context: Sequence[int], computed: int) -> ScheduledRequest:
    name = "abc"[index]
    return ScheduledRequest(name, tuple(context[computed:]), computed, block_ids(index), True)


def generate(runner: FastRunner | ModelRunner, params: dict[str, SamplingParams]) -> list[ModelRunnerOutput]:
    """NUM_TOKENS steps of the three prompts together; c is preempted after three of them and comes back."""
    contexts = {name: list(prompt) for name, prompt in PROMPTS.items()}
    computed = dict.fromkeys(PROMPTS, 0)
    results = []
    new = tuple(new_request(name, params[name]) for name in PROMPTS)
    for step in range(NUM_TOKENS):
        if step == 3:
            computed["c"] = 0
            new = (new_request("c", params["c"], contexts["c"][3:]),)
        rows = tuple(row_of(i, contexts[name], computed[name]) for i, name in enumerate(PROMPTS))
        results.append(runner.execute(SchedulerOutput(step, rows, new)))
        new = ()
        for name, token_ids in results[-1].sampled.items():
            computed[name] = len(contexts[name])
            contexts[name] += token_ids
    return results


def assert_close(ours: Sequence[TokenLogprob], theirs: Sequence[TokenLogprob]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_id == other.token_id
        assert math.isclose(one.logprob, other.logprob, abs_tol=1e-5)
        assert [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]
        assert all(math.isclose(a, b, abs_tol=1e-5) for (_, a), (_, b) in zip(one.top, other.top, strict=True))


def assert_same(ours: ModelRunnerOutput, theirs: ModelRunnerOutput) -> None:
    assert ours.sampled == theirs.sampled
    assert not ours.failures
    for name in ("logprobs", "prompt_logprobs"):
        found, expected = getattr(ours, name), getattr(theirs, name)
        assert found.keys() == expected.keys()
        for request_id in expected:
            assert_close(found[request_id], expected[request_id])


@pytest.mark.parametrize("name", ["presence and frequency", "repetition", "all"])
def test_it_says_what_the_plain_runner_says(name: str) -> None:
    params = {"a": PARAMS[name], "b": PARAMS["plain"], "c": PARAMS[name]}
    plain = generate(make_runner(), params)
    for ours, theirs in zip(generate(make_fast_runner(), params), plain, strict=True):
        assert_same(ours, theirs)
    unchanged = dict.fromkeys(PROMPTS, replace(PARAMS[name], presence_penalty=0, frequency_penalty=0,
                                               repetition_penalty=1, logit_bias=()))  # fmt: skip
    assert [result.sampled for result in generate(make_runner(), unchanged)] != [result.sampled for result in plain]


def test_rows_of_all_kinds_share_a_step() -> None:
    params = {"a": PARAMS["bias"], "b": PARAMS["log probabilities"], "c": PARAMS["of the token alone"]}
    plain = generate(make_runner(), params)
    for ours, theirs in zip(generate(make_fast_runner(), params), plain, strict=True):
        assert_same(ours, theirs)
    assert len(plain[0].logprobs["b"][0].top) == 20


def test_a_token_that_no_host_has_seen_is_counted() -> None:
    """Each step is submitted before the last is collected."""
    params = replace(PARAMS["all"], presence_penalty=2.0)
    expected = generate(make_runner(), dict.fromkeys(PROMPTS, params))
    runner = make_fast_runner()
    pending = runner.submit(SchedulerOutput(0, (row_of(0, PROMPTS["a"], 0),), (new_request("a", params),)))
    for step in range(1, NUM_TOKENS):
        row = ScheduledRequest("a", (UNSEEN,), len(PROMPTS["a"]) + step - 1, block_ids(0), True)
        following = runner.submit(SchedulerOutput(step, (row,)))
        result = runner.collect(pending)
        assert result.sampled["a"] == expected[step - 1].sampled["a"]
        assert_close(result.logprobs["a"], expected[step - 1].logprobs["a"])
        pending = following


def test_a_prompt_is_explained_in_chunks() -> None:
    """Beside a request that decodes, one token alone, and more tokens than are explained at once."""
    prompt = tuple(i % VOCAB_SIZE for i in range(3, 60))
    params = replace(RANDOM, num_prompt_logprobs=2, num_logprobs=1)
    blocks = tuple(range(20, 40))
    results: list[list[ModelRunnerOutput]] = []
    for runner in (make_runner(num_blocks=64), make_fast_runner()):
        first = SchedulerOutput(0, (row_of(1, PROMPTS["b"], 0),), (new_request("b", GREEDY),))
        token_id = runner.execute(first).sampled["b"][0]
        found = []
        for step, (begin, end) in enumerate(((0, 40), (40, 41), (41, 56), (56, 57))):
            chunk = ScheduledRequest("long", prompt[begin:end], begin, blocks, end == len(prompt))
            other = (row_of(1, (*PROMPTS["b"], token_id), 1),) if step == 2 else ()
            new = (NewRequest("long", params, None, (), prompt),) if step == 0 else ()
            found.append(runner.execute(SchedulerOutput(1 + step, (*other, chunk), new)))
        results.append(found)
    for plain, fast in zip(*results, strict=True):
        assert_same(fast, plain)
    assert [len(result.prompt_logprobs.get("long", ())) for result in results[0]] == [40, 1, 15, 0]


def test_records_of_the_preempted_are_taken() -> None:
    """More requests than records, of which some were preempted and never told as finished."""
    runner = make_fast_runner()
    runner._records.table.fill_(99)
    for number in range(runner._buffers.max_num_seqs + 3):
        name = f"r{number}"
        params = replace(GREEDY, presence_penalty=100.0)
        new = NewRequest(name, params, None, ())
        first = runner.execute(SchedulerOutput(0, (ScheduledRequest(name, (5, 6), 0, block_ids(0), True),), (new,)))
        plain = make_runner().execute(SchedulerOutput(0, (ScheduledRequest(name, (5, 6), 0, block_ids(0), True),),
                                                      (replace(new, sampling=GREEDY),)))  # fmt: skip
        assert first.sampled == plain.sampled
