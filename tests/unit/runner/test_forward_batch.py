"""The forward batch: where tokens stand, where their latents go, which rows are wanted."""

from __future__ import annotations

import torch

from sparkstral.runner.forward_batch import build_forward_batch
from sparkstral.types import ScheduledRequest


def test_a_decode_and_two_chunks_lie_one_after_the_other():
    batch = build_forward_batch(
        [
            ScheduledRequest("decode", (70,), 5, block_ids=(9, 2), samples=True),
            ScheduledRequest("middle chunk", (11, 12, 13), 3, block_ids=(4, 7, 1), samples=False),
            ScheduledRequest("last chunk", (21, 22), 0, block_ids=(3,), samples=True),
        ],
        block_size_tokens=4,
        device=torch.device("cpu"),
    )
    assert batch.input_ids.tolist() == [70, 11, 12, 13, 21, 22]
    assert batch.positions.tolist() == [5, 3, 4, 5, 0, 1]
    assert batch.slot_mapping.tolist() == [2 * 4 + 1, 4 * 4 + 3, 7 * 4, 7 * 4 + 1, 3 * 4, 3 * 4 + 1]
    assert batch.block_tables.tolist() == [[9, 2, 0], [4, 7, 1], [3, 0, 0]]
    assert batch.cu_seqlens_q == (0, 1, 4, 6)
    assert batch.seq_lens == (6, 6, 2)
    assert batch.logits_rows.tolist() == [0, 5]
    for tensor in (
        batch.input_ids,
        batch.positions,
        batch.slot_mapping,
        batch.block_tables,
        batch.logits_rows,
    ):
        assert tensor.dtype == torch.int64


def test_a_step_without_a_sample_wants_no_logits():
    batch = build_forward_batch([ScheduledRequest("r", (5, 6), 0, (1,), False)], 4, torch.device("cpu"))
    assert batch.logits_rows.shape == (0,)
