from __future__ import annotations

import random

import numpy as np
import pytest

from tools.demo.packing import IGNORED_LABEL, Mixture, PackedBatch, pack
from tools.demo.rendering import PAD, Rendered

TWO_TURNS = Rendered([1, 3, 50, 4, 60, 61, 2, 3, 51, 4, 62, 2], [(4, 7), (10, 12)])
ONE_TURN = Rendered([1, 3, 70, 4, 80, 2], [(4, 6)])


def documents(batch: PackedBatch) -> list[list[int]]:
    return [
        batch.token_ids[begin:end].tolist()
        for begin, end in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)
    ]


def test_documents_lie_whole_and_the_rest_is_padding() -> None:
    batch = pack([(TWO_TURNS, 1.0), (ONE_TURN, 4.0)], 20)
    assert documents(batch) == [TWO_TURNS.token_ids, ONE_TURN.token_ids, [PAD, PAD]]
    assert batch.max_seqlen == 12


def test_positions_begin_again_in_each_document() -> None:
    assert pack([(TWO_TURNS, 1.0), (ONE_TURN, 1.0)], 20).positions.tolist() == [*range(12), *range(6), 0, 1]


def test_labels_are_what_the_assistant_says_next_and_nothing_else() -> None:
    batch = pack([(TWO_TURNS, 1.0), (ONE_TURN, 4.0)], 20)
    learned = {int(i): int(label) for i, label in enumerate(batch.labels) if label != IGNORED_LABEL}
    assert learned == {3: 60, 4: 61, 5: 2, 9: 62, 10: 2, 15: 80, 16: 2}
    assert batch.weights[[3, 4, 5, 9, 10]].tolist() == [1.0] * 5
    assert batch.weights[[15, 16]].tolist() == [4.0] * 2
    assert batch.weights.sum() == 13.0


def test_a_row_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 17 tokens"):
        pack([(TWO_TURNS, 1.0), (ONE_TURN, 1.0)], 17)


def test_mixture_keeps_its_share_and_repeats_for_a_seed() -> None:
    def short(rng: random.Random) -> Rendered:
        return Rendered([1, 3, *rng.choices(range(1000, 1100), k=rng.randint(5, 20)), 4, 90, 2], [(4, 6)])

    def long(rng: random.Random) -> Rendered:
        return Rendered([1] * rng.randint(100, 900), [(50, 60)])

    mixture = Mixture(
        short, long, num_tokens=2048, long_share=0.25, long_weight=4.0, max_document_tokens=1000
    )
    batches = [mixture.batch(seed) for seed in range(200)]
    long_tokens = [sum(len(one) for one in documents(batch) if len(one) >= 100) for batch in batches]
    assert 0.2 < np.mean(long_tokens) / 2048 < 0.3
    assert all((batch.token_ids == PAD).sum() < 40 for batch in batches)
    again = mixture.batch(7)
    assert np.array_equal(again.token_ids, batches[7].token_ids)
