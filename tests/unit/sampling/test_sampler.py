"""The sampler: exact greedy, draws that follow the distribution, filters that hold, rows that are alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparkstral.sampling import sampler
from sparkstral.sampling.sampler import SamplingRow, derive_seed, draw_uniform, sample
from sparkstral.types import Failure, SamplingParams

GREEDY = SamplingParams(max_tokens=1, temperature=0)
PLAIN = SamplingParams(max_tokens=1, temperature=1)


def draw_many(logits: list[float], params: SamplingParams, count: int, seed: int = 1) -> np.ndarray:
    """Frequencies of `count` draws at successive positions."""
    rows = [SamplingRow(params, seed, position) for position in range(count)]
    tokens = sample(torch.tensor(logits).expand(count, -1), rows)
    return np.bincount(np.array(tokens), minlength=len(logits)) / count


def bitmask(num_tokens: int, *allowed: int) -> np.ndarray:
    words = np.zeros((num_tokens + 31) // 32, dtype=np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << (token % 32))
    return words.view(np.int32)


def test_greedy_takes_the_largest_and_the_lowest_id_among_equals():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [-5.0, -7.0, -5.0, -6.0]])
    assert sample(logits, [SamplingRow(GREEDY, 0, 0)] * 2) == [1, 0]


def test_draws_follow_softmax_at_each_temperature():
    logits = [1.0, 0.0, -1.0, 2.0, -3.0]
    for temperature in (0.5, 1.0, 1.7):
        expected = np.exp(np.array(logits) / temperature)
        expected /= expected.sum()
        count = 40_000
        seen = draw_many(logits, replace(PLAIN, temperature=temperature), count)
        chi_squared = float((count * (seen - expected) ** 2 / expected).sum())
        assert chi_squared < 18.5  # 4 degrees of freedom: exceeded once in 1,000; the seed is fixed


def test_successive_draws_are_independent():
    uniforms = np.array([draw_uniform(7, position) for position in range(20_000)])
    assert abs(uniforms.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(uniforms[:-1], uniforms[1:])[0, 1]) < 0.02
    other = np.array([draw_uniform(8, position) for position in range(20_000)])
    assert abs(np.corrcoef(uniforms, other)[0, 1]) < 0.02


def test_top_k_keeps_the_k_likeliest_in_their_proportions():
    seen = draw_many([0.0, 2.0, 1.0, 2.0], replace(PLAIN, top_k=2), 4_000)
    assert seen[0] == 0
    assert seen[2] == 0
    assert seen[1] == pytest.approx(0.5, abs=0.03)


def test_top_k_among_equals_keeps_the_lowest_ids():
    seen = draw_many([1.0, 1.0, 1.0, 1.0], replace(PLAIN, top_k=2), 500)
    assert seen[2:].sum() == 0
    assert seen[0] > 0
    assert seen[1] > 0


def test_top_p_keeps_the_fewest_that_reach_it():
    logits = [math.log(p) for p in (0.05, 0.5, 0.15, 0.3)]
    assert (draw_many(logits, replace(PLAIN, top_p=0.79), 4_000) > 0).tolist() == [False, True, False, True]
    assert (draw_many(logits, replace(PLAIN, top_p=0.81), 4_000) > 0).tolist() == [False, True, True, True]
    assert draw_many(logits, replace(PLAIN, top_p=0.0), 100)[1] == 1


def test_top_p_counts_what_top_k_left():
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]  # of the first two: 0.57 and 0.43
    assert draw_many(logits, replace(PLAIN, top_k=2, top_p=0.5), 200)[0] == 1
    assert draw_many(logits, replace(PLAIN, top_p=0.5), 2_000)[1] > 0


def test_min_p_drops_what_is_far_below_the_likeliest():
    logits = [math.log(p) for p in (0.5, 0.3, 0.04, 0.16)]
    assert (draw_many(logits, replace(PLAIN, min_p=0.1), 4_000) > 0).tolist() == [True, True, False, True]


def test_a_row_does_not_depend_on_its_batch():
    torch.manual_seed(0)
    logits = torch.randn(12, 1_000) * 3
    kinds = [
        GREEDY,
        PLAIN,
        replace(PLAIN, top_p=0.9),
        replace(PLAIN, top_k=20, temperature=0.7),
        replace(PLAIN, min_p=0.05),
        replace(PLAIN, banned_token_ids=(3, 999)),
    ]
    masks = [bitmask(1_000, *range(i, 1_000, 7)) if i % 4 else None for i in range(12)]
    rows = [SamplingRow(kinds[i % 6], seed=i, position=i * 3, bitmask=masks[i]) for i in range(12)]
    together = sample(logits, rows)
    assert together == [sample(logits[i : i + 1], [rows[i]])[0] for i in range(12)]
    order = [5, 3, 11, 0, 7]
    assert sample(logits[order], [rows[i] for i in order]) == [together[i] for i in order]


def test_a_seed_repeats_and_another_differs():
    logits = torch.zeros(1, 5_000).expand(20, -1)
    first = sample(logits, [SamplingRow(PLAIN, 5, i) for i in range(20)])
    assert first == sample(logits, [SamplingRow(PLAIN, 5, i) for i in range(20)])
    assert first != sample(logits, [SamplingRow(PLAIN, 6, i) for i in range(20)])
    assert len(set(first)) > 15
    assert derive_seed(0, "a") == derive_seed(0, "a")
    assert len({derive_seed(0, "a"), derive_seed(0, "b"), derive_seed(1, "a")}) == 3


def test_any_integer_is_a_seed():
    logits = torch.zeros(1, 100)
    for seed in (-1, 0, 2**63, 2**64 + 5):
        assert 0 <= sample(logits, [SamplingRow(PLAIN, seed, 0)])[0] < 100


def test_forbidden_tokens_never_come():
    logits = [9.0, 0.0, 8.0, 0.5]
    banned = replace(PLAIN, banned_token_ids=(0, 2))
    assert draw_many(logits, banned, 500)[[0, 2]].sum() == 0
    masked = SamplingRow(GREEDY, 0, 0, bitmask=bitmask(4, 1, 3))
    assert sample(torch.tensor([logits]), [masked]) == [3]
    row = SamplingRow(replace(GREEDY, banned_token_ids=(3,)), 0, 0, bitmask=bitmask(4, 1, 3))
    assert sample(torch.tensor([logits]), [row]) == [1]


@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 1), (1 - 2.0**-53, 3)])
def test_the_ends_of_the_distribution_are_allowed_tokens(
    uniform: float, expected: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sampler, "draw_uniform", lambda seed, position: uniform)
    row = SamplingRow(replace(PLAIN, banned_token_ids=(0, 4)), 0, 0)
    assert sample(torch.zeros(1, 5), [row]) == [expected]


def test_masks_reach_every_word():
    logits = torch.zeros(3, 70)
    rows = [SamplingRow(PLAIN, 0, 0, bitmask=bitmask(70, token)) for token in (31, 32, 69)]
    assert sample(logits, rows) == [31, 32, 69]


@pytest.mark.parametrize("sick", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", [GREEDY, PLAIN, replace(PLAIN, top_p=0.5)])
def test_a_sick_row_fails_alone(sick: float, params: SamplingParams):
    logits = torch.zeros(3, 50)
    logits[:, 4] = 20.0
    logits[1, 17] = sick
    first, second, third = sample(logits, [SamplingRow(params, 0, 0)] * 3)
    assert (first, third) == (4, 4)
    assert isinstance(second, Failure)
    assert second.code == "numerics"


def test_a_row_that_may_say_nothing_fails_alone():
    logits = torch.zeros(2, 40)
    rows = [SamplingRow(PLAIN, 0, 0, bitmask=bitmask(40)), SamplingRow(PLAIN, 0, 0)]
    nothing, something = sample(logits, rows)
    assert isinstance(nothing, Failure)
    assert nothing.code == "grammar"
    assert isinstance(something, int)


@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 1e-300])
def test_tiny_temperatures_are_greedy(temperature: float):
    logits = torch.tensor([[299.0, 300.0, -300.0]])
    assert sample(logits, [SamplingRow(replace(PLAIN, temperature=temperature), 0, 0)]) == [1]


def test_the_given_logits_stay_as_they_were():
    logits = torch.randn(2, 64)
    before = logits.clone()
    sample(logits, [SamplingRow(replace(PLAIN, banned_token_ids=(1,), top_k=3), 0, 0)] * 2)
    assert torch.equal(logits, before)
