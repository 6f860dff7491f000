from __future__ import annotations

import math

import torch

from sparkstral.sampling.logprobs import logprobs_of
from sparkstral.sampling.processors import History, process
from sparkstral.types import SamplingParams

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 3.0], [0.0, 1.0, -2.0, 0.25]])


def params(**fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=9, temperature=1.0, stop_token_ids=(3,), **fields)  # type: ignore[arg-type]


def processed(*rows: History) -> list[list[float]]:
    return process(LOGITS, rows).tolist()


def test_rows_that_change_nothing_are_the_very_logits() -> None:
    assert process(LOGITS, [History(params(), (0,), (1, 1))] * 2) is LOGITS


def test_the_penalties_count_the_answer_and_leave_the_other_rows_alone() -> None:
    row, other = processed(
        History(params(presence_penalty=0.5, frequency_penalty=0.25), (0, 0), (1, 1, 2)), History(params(), (), (1,))
    )
    assert row == [2.0, -1.0 - 0.5 - 2 * 0.25, 0.5 - 0.5 - 0.25, 3.0]
    assert other == LOGITS[1].tolist()
    assert LOGITS[0].tolist() == [2.0, -1.0, 0.5, 3.0]


def test_repetition_counts_the_prompt_too_and_each_token_once() -> None:
    row, _ = processed(History(params(repetition_penalty=2.0), (0, 0, 1), (0, 2)), History(params(), (), ()))
    assert row == [1.0, -2.0, 0.25, 3.0]


def test_a_bias_is_added_after_the_penalties() -> None:
    row, _ = processed(
        History(params(logit_bias=((0, -100.0), (1, 5.0)), repetition_penalty=2.0), (1,), ()), History(params(), (), ())
    )
    assert row == [-98.0, 3.0, 0.5, 3.0]


def test_stop_tokens_are_banned_up_to_min_tokens() -> None:
    at_least = params(min_tokens=2, banned_token_ids=(9,))
    assert [at_least.at(position).banned_token_ids for position in range(3)] == [(9, 3), (9, 3), (9,)]


def test_log_probabilities_are_those_of_softmax_with_the_likeliest_first() -> None:
    first, second = logprobs_of(LOGITS, [1, 1], 2)
    total = sum(math.exp(x) for x in LOGITS[0].tolist())
    assert math.isclose(first.logprob, -1.0 - math.log(total), rel_tol=1e-6)
    assert [token_id for token_id, _ in first.top] == [3, 0]
    assert [token_id for token_id, _ in second.top] == [1, 3]
    assert second.top[0] == (second.token_id, second.logprob)
    assert logprobs_of(LOGITS, [0, 0], 0)[0].top == ()
