"""Which drafts stand: the rule, and that what comes of it has the target's distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from sparkstral.kernels import sampling
from sparkstral.sampling.sampler import draw_uniform
from sparkstral.speculative.rejection import accepted
from sparkstral.types import Failure

SICK = Failure("numerics", "not finite")
NUM_DRAWS, VOCAB, LENGTH = 100_000, 5, 3
# The target's logits behind each beginning of up to two tokens: differences of about 1, as a real model's top has.
LOGITS = torch.from_numpy(np.random.default_rng(4).normal(size=(VOCAB + 1, VOCAB + 1, VOCAB)).astype(np.float32))
CHI2_999 = 183.2  # 124 degrees of freedom: a right rule passes 999 times in 1,000; the seeds are fixed


def test_drafts_stand_up_to_the_first_that_the_target_did_not_choose():
    assert accepted((), [7]) == (7,)
    assert accepted((1, 2), [1, 2, 3]) == (1, 2, 3)
    assert accepted((1, 2), [1, 9, 3]) == (1, 9)
    assert accepted((1, 2), [8, 2, 3]) == (8,)


def test_where_the_choices_end_the_drafts_do():
    assert accepted((1, 2, 3), [1, 2]) == (1, 2)


def test_a_failure_behind_drafts_that_stand_is_left_to_the_next_step():
    assert accepted((1, 2), [SICK, 2, 3]) is SICK
    assert accepted((1, 2), [1, SICK, 3]) == (1,)
    assert accepted((1, 2), [5, SICK, SICK]) == (5,)


def target_choices(beginnings: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """beginnings [N, 2] ids, VOCAB for none; positions [N] -> what the target says behind them, at temperature 1."""
    count = len(beginnings)
    uniform = [draw_uniform(seed, int(position)) for seed, position in enumerate(positions)]
    token_ids, _ = sampling.sample(
        LOGITS[beginnings[:, 0], beginnings[:, 1]],
        torch.ones(count),
        torch.zeros(count, dtype=torch.int32),
        torch.ones(count, dtype=torch.float64),
        torch.zeros(count),
        torch.tensor(uniform, dtype=torch.float64),
        torch.zeros(0, 0, dtype=torch.int32),
        torch.full((count,), -1, dtype=torch.int32),
    )
    return token_ids.numpy()


def answers(rule: Callable[..., tuple[int, ...]], num_draws: int) -> np.ndarray:
    """[num_draws, LENGTH] answers, each in steps with two drafts that somebody guesses, well or badly."""
    guesses = np.random.default_rng(8).integers(0, VOCAB, (LENGTH, num_draws, 2))
    guesses[:, : num_draws // 2, 0] = int(LOGITS[VOCAB, VOCAB].argmax())  # what is likely to stand
    texts = np.full((num_draws, LENGTH + 3), VOCAB)
    lengths = np.zeros(num_draws, dtype=np.int64)
    everyone = np.arange(num_draws)
    for drafts in guesses:
        choices = []
        scratch = texts.copy()
        for i in range(3):
            at = np.minimum(lengths + i, LENGTH)
            known = np.where(np.arange(2) < at[:, None], scratch[:, :2], VOCAB)
            choices.append(target_choices(known, at))
            if i < 2:
                scratch[everyone, at] = drafts[:, i]
        for n, (ours, theirs) in enumerate(zip(drafts.tolist(), np.stack(choices, 1).tolist(), strict=True)):
            for token in rule(ours, theirs):
                if lengths[n] < LENGTH:
                    texts[n, lengths[n]] = token
                    lengths[n] += 1
    assert (lengths == LENGTH).all()
    return texts[:, :LENGTH]


def chi_square(texts: np.ndarray) -> float:
    """Of the answers, against the product of the target's conditional probabilities."""
    probabilities = torch.softmax(LOGITS.double(), -1).numpy()
    first = probabilities[VOCAB, VOCAB]
    second = probabilities[:VOCAB, VOCAB]
    third = probabilities[:VOCAB, :VOCAB]
    expected = len(texts) * first[:, None, None] * second[:, :, None] * third
    seen = np.zeros((VOCAB,) * LENGTH)
    np.add.at(seen, tuple(texts.T), 1)
    return float(((seen - expected) ** 2 / expected).sum())


def test_answers_have_the_target_s_distribution():
    assert chi_square(answers(accepted, NUM_DRAWS)) < CHI2_999


def test_that_test_can_fail():
    def prefers_drafts(drafts: list[int], choices: list[int]) -> tuple[int, ...]:
        """A draft that nearly stands, stands: one in 50."""
        near = [d if abs(d - c) == 1 and d % 2 and c > 2 else c for d, c in zip(drafts, choices, strict=False)]
        return accepted(drafts, [*near, choices[-1]])

    assert chi_square(answers(prefers_drafts, NUM_DRAWS // 5)) > 2 * CHI2_999
