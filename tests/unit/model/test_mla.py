from __future__ import annotations

import pytest
import torch

from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.model.mla import AttentionPlan, is_absorbed_cheaper, split_kv_b_proj


@pytest.mark.parametrize(
    ("num_query_tokens", "seq_len", "absorbed"),
    [
        (1, 2, True),  # a decode step
        (1, 262_144, True),
        (2, 2, False),  # whole prompts
        (500, 500, False),
        (4, 1000, True),  # drafts
        (50, 4000, True),  # a new turn behind a cached prefix
        (153, 262_144, True),
        (154, 262_144, False),
        (2048, 16_384, False),  # a chunk
    ],
)
def test_the_form_with_fewer_multiply_adds_is_taken(
    num_query_tokens: int, seq_len: int, absorbed: bool
) -> None:
    assert is_absorbed_cheaper(num_query_tokens, seq_len) is absorbed


def batch(cu_seqlens_q: tuple[int, ...], seq_lens: tuple[int, ...]) -> ForwardBatch:
    tokens = torch.zeros(cu_seqlens_q[-1], dtype=torch.int64)
    tables = torch.arange(len(seq_lens))[:, None].expand(-1, 3)
    return ForwardBatch(tokens, tokens, tokens, tables, cu_seqlens_q, seq_lens, tokens)


def test_a_mixed_batch_is_divided_and_keeps_its_order() -> None:
    plan = AttentionPlan.of(batch((0, 1, 11, 12, 14), (100, 10, 50, 90)))
    assert plan.absorbed is not None
    assert plan.expanded is not None
    assert isinstance(plan.absorbed.rows, torch.Tensor)
    assert plan.absorbed.rows.tolist() == [0, 11, 12, 13]
    assert plan.absorbed.block_tables[:, 0].tolist() == [0, 2, 3]
    assert plan.absorbed.cu_seqlens_q == (0, 1, 2, 4)
    assert plan.absorbed.seq_lens == (100, 50, 90)
    assert isinstance(plan.expanded.rows, torch.Tensor)
    assert plan.expanded.rows.tolist() == list(range(1, 11))
    assert plan.expanded.cu_seqlens_q == (0, 10)
    assert plan.expanded.seq_lens == (10,)


@pytest.mark.parametrize(("cu_seqlens_q", "seq_lens"), [((0, 1, 2), (9, 70)), ((0, 5, 12), (5, 7))])
def test_a_batch_of_one_form_is_taken_as_it_is(
    cu_seqlens_q: tuple[int, ...], seq_lens: tuple[int, ...]
) -> None:
    plan = AttentionPlan.of(batch(cu_seqlens_q, seq_lens))
    groups = [group for group in (plan.absorbed, plan.expanded) if group is not None]
    assert len(groups) == 1
    assert groups[0].rows == slice(None)
    assert groups[0].cu_seqlens_q == cu_seqlens_q


def test_kv_b_rows_are_each_heads_k_nope_then_its_v() -> None:
    rows = torch.arange(2 * 192)[:, None].expand(-1, 256)
    w_uk, w_uv = split_kv_b_proj(rows, num_heads=2)
    assert w_uk[:, :, 0].tolist() == [list(range(64)), list(range(192, 256))]
    assert w_uv[:, :, 0].tolist() == [list(range(64, 192)), list(range(256, 384))]
