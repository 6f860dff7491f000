"""The Triton form of prefill attention in the interpreter, against the reference, in float32."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import mla_prefill
from sparkstral.kernels.mla_prefill import triton_kernel
from sparkstral.kernels.mla_prefill.triton_kernel import PrefillConfig

NUM_HEADS, NOPE, ROPE, LATENT, VALUE, BLOCK_SIZE, NUM_BLOCKS = 2, 64, 64, 256, 128, 16, 32
SCALE = 128**-0.5
CONFIG = PrefillConfig(queries=16, keys=16, num_warps=4, num_stages=1)
GENERATOR = torch.Generator().manual_seed(0)
W_KV_B = torch.randn(NUM_HEADS * (NOPE + VALUE), LATENT, generator=GENERATOR) * LATENT**-0.5
# First chunk of a prompt, chunks behind a context, a whole prompt, a last token.
SEQ_LENS = (40, 77, 33, 5)
NUM_QUERIES = (20, 30, 33, 1)
LATENTS = [torch.randn(length, LATENT + ROPE, generator=GENERATOR) for length in SEQ_LENS]
QUERIES = [torch.randn(n, NUM_HEADS, NOPE + ROPE, generator=GENERATOR) for n in NUM_QUERIES]
ALL = [0, 1, 2, 3]


def paged(requests: list[int], seed: int = 0, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    pool = torch.full((NUM_BLOCKS, BLOCK_SIZE, LATENT + ROPE), fill)
    free = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = torch.full((len(requests), 6), free.pop(), dtype=torch.int32)
    for row, request in enumerate(requests):
        for i in range(0, SEQ_LENS[request], BLOCK_SIZE):
            block = free.pop()
            latents = LATENTS[request][i : i + BLOCK_SIZE]
            pool[block, : len(latents)] = latents
            tables[row, i // BLOCK_SIZE] = block
    return pool, tables


def lengths(requests: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ends = torch.tensor([0] + [NUM_QUERIES[request] for request in requests]).cumsum(0).tolist()
    return tuple(ends), tuple(SEQ_LENS[request] for request in requests)


def attend(requests: list[int], pool: Tensor, tables: Tensor, max_keys: int = 200) -> Tensor:
    ends, seq_lens = lengths(requests)
    workspace = triton_kernel.allocate_workspace(max_keys, ends[-1], NUM_HEADS, torch.float32, torch.device("cpu"))
    for tensor in (workspace.latents, workspace.expanded, workspace.sums, workspace.peaks, workspace.totals):
        tensor.fill_(float("nan"))  # what no pass wrote must not be read
    passes = triton_kernel.plan_passes(tables, ends, seq_lens, block_size=BLOCK_SIZE, max_keys=max_keys, config=CONFIG)
    q = torch.cat([QUERIES[request] for request in requests])
    return triton_kernel.mla_prefill(q, pool, passes, W_KV_B, SCALE, workspace=workspace, config=CONFIG)


def reference(requests: list[int]) -> Tensor:
    pool, tables = paged(requests)
    w_uk, w_uv = W_KV_B.view(NUM_HEADS, NOPE + VALUE, LATENT).split([NOPE, VALUE], dim=1)
    q = torch.cat([QUERIES[request] for request in requests])
    return mla_prefill.mla_prefill(q, pool, tables.long(), *lengths(requests), w_uk, w_uv, SCALE)


def assert_attention(requests: list[int], pool: Tensor, tables: Tensor, max_keys: int = 200) -> None:
    out = attend(requests, pool, tables, max_keys)
    torch.testing.assert_close(out, reference(requests), rtol=0, atol=1e-5)


def test_a_ragged_batch_in_one_pass_attends_as_the_reference() -> None:
    assert_attention(ALL, *paged(ALL))


@pytest.mark.parametrize("max_keys", [32, 40])
def test_requests_longer_than_the_scratch_attend_in_pieces(max_keys: int) -> None:
    # Pieces that end between blocks, within them, and before the first query.
    assert_attention(ALL, *paged(ALL), max_keys)


@pytest.mark.parametrize("lane", [0, 255, 256, 319])
def test_a_latent_that_is_off_is_noticed(lane: int) -> None:
    pool, tables = paged([1])
    pool[tables[0, 1], 3, lane] += 0.01 * LATENTS[1].abs().max()  # 1 % of the largest
    with pytest.raises(AssertionError):
        assert_attention([1], pool, tables)


def test_a_scrambled_block_table_changes_no_bit() -> None:
    assert torch.equal(attend(ALL, *paged(ALL, seed=0)), attend(ALL, *paged(ALL, seed=1)))


def test_nan_in_rows_that_are_not_the_requests_changes_no_bit() -> None:
    assert torch.equal(attend(ALL, *paged(ALL)), attend(ALL, *paged(ALL, fill=float("nan"))))


def test_nan_in_a_requests_latents_stays_in_its_own_answer() -> None:
    pool, tables = paged(ALL)
    pool[tables[1, 0], 2, 5] = float("nan")
    sick = attend(ALL, pool, tables).isnan().any(-1).any(-1)
    begin, end = lengths(ALL)[0][1:3]
    assert sick.tolist() == [begin <= i < end for i in range(len(sick))]


def test_a_request_alone_equals_itself_in_a_batch() -> None:
    together, ends = attend(ALL, *paged(ALL)), lengths(ALL)[0]
    for request, (begin, end) in zip(ALL, pairwise(ends), strict=True):
        # Not to the bit: the expansion is a library's product, which rounds by its number of rows.
        torch.testing.assert_close(together[begin:end], attend([request], *paged([request])), rtol=0, atol=1e-6)


def test_long_programs_start_first() -> None:
    ends, seq_lens = lengths(ALL)
    (only,) = triton_kernel.plan_passes(
        paged(ALL)[1], ends, seq_lens, block_size=BLOCK_SIZE, max_keys=200, config=CONFIG
    )
    keys = [SEQ_LENS[request] - NUM_QUERIES[request] + query for request, query in only.tiles.tolist()]
    assert keys == sorted(keys, reverse=True)
    assert len(keys) == 2 + 2 + 3 + 1
