"""Both forms of latent attention, against one that is written token by token in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import latent_write, mla_decode, mla_prefill

NUM_HEADS, NOPE, ROPE, LATENT, VALUE, BLOCK_SIZE, NUM_BLOCKS = 3, 64, 64, 256, 128, 16, 24
SCALE = 128**-0.5
GENERATOR = torch.Generator().manual_seed(0)
W_UK = torch.randn(NUM_HEADS, NOPE, LATENT, generator=GENERATOR) * LATENT**-0.5
W_UV = torch.randn(NUM_HEADS, VALUE, LATENT, generator=GENERATOR) * LATENT**-0.5
LATENTS = [torch.randn(length, LATENT + ROPE, generator=GENERATOR) for length in (40, 1, 77, 16, 33)]
NUM_QUERIES = (1, 1, 20, 16, 3)  # the last of each sequence: decode, first token, chunk, whole prompt, draft
QUERIES = [torch.randn(n, NUM_HEADS, NOPE + ROPE, generator=GENERATOR) for n in NUM_QUERIES]

Attention = Callable[[list[int], Tensor, Tensor], Tensor]


def paged(requests: list[int], seed: int = 0, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """A pool with the requests' latents in blocks drawn at random, everything else `fill`, and the tables."""
    pool = torch.full((NUM_BLOCKS, BLOCK_SIZE, LATENT + ROPE), fill)
    free = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = torch.zeros(len(requests), 5, dtype=torch.int64)
    for row, request in enumerate(requests):
        latents = LATENTS[request]
        blocks = [free.pop() for _ in range(-(-len(latents) // BLOCK_SIZE))]
        tables[row, : len(blocks)] = torch.tensor(blocks)
        slots = [blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(len(latents))]
        latent_write.latent_write(pool, torch.tensor(slots), latents[:, :LATENT], latents[:, LATENT:])
    return pool, tables


def lengths(requests: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ends = torch.tensor([0] + [NUM_QUERIES[request] for request in requests]).cumsum(0).tolist()
    return tuple(ends), tuple(len(LATENTS[request]) for request in requests)


def expanded(requests: list[int], pool: Tensor, tables: Tensor) -> Tensor:
    q = torch.cat([QUERIES[request] for request in requests])
    return mla_prefill.mla_prefill(q, pool, tables, *lengths(requests), W_UK, W_UV, SCALE)


def absorbed(requests: list[int], pool: Tensor, tables: Tensor) -> Tensor:
    # Request by request outside of the kernel: products with w_uk and w_uv round by their number of rows.
    q = [
        torch.cat(
            (torch.einsum("tnd,ndl->tnl", QUERIES[r][..., :NOPE], W_UK), QUERIES[r][..., NOPE:]), dim=-1
        )
        for r in requests
    ]
    ends, seq_lens = lengths(requests)
    values = mla_decode.mla_decode(torch.cat(q), pool, tables, ends, seq_lens, SCALE, LATENT)
    return torch.cat([torch.einsum("tnl,nvl->tnv", values[begin:end], W_UV) for begin, end in pairwise(ends)])


def token_by_token(requests: list[int]) -> Tensor:
    out = []
    for request in requests:
        latents, queries = LATENTS[request].double(), QUERIES[request].double()
        for i, query in enumerate(queries):
            seen = latents[: len(latents) - len(queries) + i + 1]
            c_kv, k_rope = seen[:, :LATENT], seen[:, LATENT:]
            heads = []
            for head in range(NUM_HEADS):
                keys = torch.cat((c_kv @ W_UK[head].double().T, k_rope), dim=-1)
                weights = ((keys @ query[head]) * SCALE).softmax(0)
                heads.append(weights @ (c_kv @ W_UV[head].double().T))
            out.append(torch.stack(heads))
    return torch.stack(out)


def assert_attention(attention: Attention, requests: list[int], pool: Tensor, tables: Tensor) -> None:
    out = attention(requests, pool, tables)
    torch.testing.assert_close(out.double(), token_by_token(requests), rtol=0, atol=1e-5)


FORMS = pytest.mark.parametrize("attention", [expanded, absorbed])
ALL = [0, 1, 2, 3, 4]


def test_scores_have_the_spread_that_shows_errors() -> None:
    latents, queries = LATENTS[2], QUERIES[2]
    keys = torch.cat((latents[:, :LATENT] @ W_UK[0].T, latents[:, LATENT:]), dim=-1)
    assert 0.8 < float((queries[:, 0] @ keys.T * SCALE).std()) < 1.25


@FORMS
def test_a_ragged_batch_attends_as_token_by_token(attention: Attention) -> None:
    assert_attention(attention, ALL, *paged(ALL))


@FORMS
def test_a_latent_that_is_one_percent_off_is_noticed(attention: Attention) -> None:
    pool, tables = paged(ALL)
    pool[tables[2, 1], 3] *= 1.01
    with pytest.raises(AssertionError):
        assert_attention(attention, ALL, pool, tables)


@FORMS
def test_a_scrambled_block_table_changes_no_bit(attention: Attention) -> None:
    assert torch.equal(attention(ALL, *paged(ALL, seed=0)), attention(ALL, *paged(ALL, seed=1)))


@FORMS
def test_nan_in_rows_that_are_not_the_requests_changes_no_bit(attention: Attention) -> None:
    clean, poisoned = attention(ALL, *paged(ALL)), attention(ALL, *paged(ALL, fill=float("nan")))
    assert torch.equal(clean, poisoned)


@FORMS
def test_a_request_alone_equals_itself_in_a_batch_to_the_bit(attention: Attention) -> None:
    together = attention([3, 0, 4, 2, 1], *paged([3, 0, 4, 2, 1]))
    ends = lengths([3, 0, 4, 2, 1])[0]
    for request, (begin, end) in zip([3, 0, 4, 2, 1], pairwise(ends), strict=True):
        assert torch.equal(together[begin:end], attention([request], *paged([request])))


@pytest.mark.parametrize("module", ["mla_prefill", "mla_decode"])
def test_queries_in_parts_attend_as_queries_at_once(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = {"mla_prefill": expanded, "mla_decode": absorbed}[module]
    whole = attention([2], *paged([2]))
    limit = {"mla_prefill": ("_MASKED_QUERIES", 7), "mla_decode": ("_MAX_SCORES", 7 * NUM_HEADS * 77)}[module]
    monkeypatch.setattr(f"sparkstral.kernels.{module}.reference.{limit[0]}", limit[1])
    torch.testing.assert_close(attention([2], *paged([2])), whole, rtol=0, atol=1e-6)


def test_latent_write_touches_its_slots_alone_and_rounds_to_the_pool() -> None:
    pool = torch.full((4, 8, 6), 7.0, dtype=torch.bfloat16)
    c_kv, k_rope = torch.rand(2, 4, generator=GENERATOR), torch.rand(2, 2, generator=GENERATOR)
    latent_write.latent_write(pool, torch.tensor([3 * 8 + 7, 8]), c_kv, k_rope)
    expected = torch.full((4, 8, 6), 7.0, dtype=torch.bfloat16)
    expected[3, 7] = torch.cat((c_kv[0], k_rope[0])).bfloat16()
    expected[1, 0] = torch.cat((c_kv[1], k_rope[1])).bfloat16()
    assert torch.equal(pool, expected)
