"""The Triton form of latent decode attention in the interpreter, against the references.

In float32: the interpreter's dot does not know bfloat16, and rounding would hide errors.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import mla_decode, rope
from sparkstral.kernels.mla_decode import triton_kernel
from sparkstral.kernels.mla_decode.triton_kernel import DecodeConfig, RowTile

NUM_HEADS, NOPE, ROPE, LATENT, VALUE, BLOCK_SIZE, NUM_BLOCKS = 3, 64, 64, 256, 128, 16, 32
SCALE = 128**-0.5
CONFIG = DecodeConfig(
    single=RowTile(rows=16, tokens=8, num_warps=4, num_stages=1),
    several=RowTile(rows=16, tokens=16, num_warps=4, num_stages=1),
    split_tokens=16,
    max_splits=4,
    num_programs=3,
    combine_splits=2,
    value_rows=128,
    num_warps=4,
    fp8_tiles=(RowTile(16, 8, 4, 1), RowTile(16, 16, 4, 1)),
)
GENERATOR = torch.Generator().manual_seed(0)
W_UK = torch.randn(NUM_HEADS, NOPE, LATENT, generator=GENERATOR) * NOPE**-0.5
W_UV = torch.randn(NUM_HEADS, VALUE, LATENT, generator=GENERATOR) * LATENT**-0.5
SEQ_LENS = (40, 1, 77, 8, 33, 100)
NUM_QUERIES = (1, 1, 6, 8, 3, 2)
LATENTS = [torch.randn(length, LATENT + ROPE, generator=GENERATOR) for length in SEQ_LENS]
# Scores then have a standard deviation near 1.
QUERIES = [torch.randn(n, NUM_HEADS, LATENT + ROPE, generator=GENERATOR) * 0.6 for n in NUM_QUERIES]
ALL = list(range(len(SEQ_LENS)))


def paged(requests: list[int], seed: int = 0, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """A pool with the requests' latents in blocks drawn at random, everything else `fill`, and the tables, which
    are padded with a block that is `fill` too."""
    pool = torch.full((NUM_BLOCKS, BLOCK_SIZE, LATENT + ROPE), fill)
    free = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed)).tolist()
    padding = free.pop()
    tables = torch.full((len(requests), 8), padding, dtype=torch.int32)
    for row, request in enumerate(requests):
        for i in range(0, SEQ_LENS[request], BLOCK_SIZE):
            block = free.pop()
            latents = LATENTS[request][i : i + BLOCK_SIZE]
            pool[block, : len(latents)] = latents
            tables[row, i // BLOCK_SIZE] = block
    return pool, tables


def lengths(requests: list[int]) -> tuple[list[int], list[int]]:
    ends = torch.tensor([0] + [NUM_QUERIES[request] for request in requests]).cumsum(0).tolist()
    return ends, [SEQ_LENS[request] for request in requests]


def attend(requests: list[int], pool: Tensor, tables: Tensor, config: DecodeConfig = CONFIG) -> Tensor:
    ends, seq_lens = lengths(requests)
    max_query_len = max(NUM_QUERIES[request] for request in requests)
    workspace = triton_kernel.allocate_workspace(
        config, len(requests), max_query_len, NUM_HEADS, LATENT, torch.device("cpu")
    )
    workspace.sums.fill_(float("nan"))  # what no split writes must not be read
    workspace.log_sums.fill_(float("nan"))
    return triton_kernel.mla_decode(
        torch.cat([QUERIES[request] for request in requests]),
        pool,
        tables,
        torch.tensor(ends, dtype=torch.int32),
        torch.tensor(seq_lens, dtype=torch.int32),
        SCALE,
        W_UV,
        max_query_len=max_query_len,
        workspace=workspace,
        config=config,
        pdl=False,
    )


def reference(requests: list[int]) -> Tensor:
    ends, seq_lens = lengths(requests)
    q = torch.cat([QUERIES[request] for request in requests])
    pool, tables = paged(requests)
    values = mla_decode.mla_decode(q, pool, tables.long(), tuple(ends), tuple(seq_lens), SCALE, LATENT)
    return torch.einsum("tnl,nvl->tnv", values, W_UV)


def assert_attention(requests: list[int], pool: Tensor, tables: Tensor) -> None:
    torch.testing.assert_close(attend(requests, pool, tables), reference(requests), rtol=0, atol=2e-5)


def test_a_ragged_batch_with_one_to_eight_queries_attends_as_the_reference() -> None:
    assert_attention(ALL, *paged(ALL))


def test_decode_steps_alone_attend_as_the_reference() -> None:
    assert_attention([0, 1], *paged([0, 1]))


@pytest.mark.parametrize("lane", [3, 255, 256, 319])
def test_a_latent_that_is_off_is_noticed(lane: int) -> None:
    pool, tables = paged([2])
    pool[tables[0, 1], 3, lane] += 0.01 * LATENTS[2].abs().max()  # 1 % of the largest
    with pytest.raises(AssertionError):
        assert_attention([2], pool, tables)


def test_a_scrambled_block_table_changes_no_bit() -> None:
    assert torch.equal(attend(ALL, *paged(ALL, seed=0)), attend(ALL, *paged(ALL, seed=1)))


def test_nan_in_rows_that_are_not_the_requests_changes_no_bit() -> None:
    assert torch.equal(attend(ALL, *paged(ALL)), attend(ALL, *paged(ALL, fill=float("nan"))))


def test_nan_in_a_requests_latents_reaches_its_own_answer_alone() -> None:
    pool, tables = paged(ALL)
    pool[tables[4, 0], 2, 5] = float("nan")
    out, ends = attend(ALL, pool, tables), lengths(ALL)[0]
    sick = torch.zeros(len(out), dtype=torch.bool)
    sick[ends[4] : ends[5]] = True
    assert torch.equal(out.isnan().any(-1).any(-1), sick)


def test_a_request_alone_equals_itself_in_a_batch_to_the_bit() -> None:
    order = [4, 0, 5, 2]
    together, ends = attend(order, *paged(order)), lengths(order)[0]
    for request, (begin, end) in zip(order, pairwise(ends), strict=True):
        # One and several queries take different tiles: one shape of tile for both sides here.
        config = DecodeConfig(**{**_fields(CONFIG), "single": CONFIG.several})
        assert torch.equal(together[begin:end], attend([request], *paged([request]), config))


def _fields(config: DecodeConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__slots__}


def test_a_row_that_pads_the_batch_has_no_tokens_and_disturbs_nothing() -> None:
    pool, tables = paged([0, 2])
    ends, seq_lens = lengths([0, 2])
    q = torch.cat((QUERIES[0], QUERIES[2], torch.full((1, NUM_HEADS, LATENT + ROPE), float("nan"))))
    workspace = triton_kernel.allocate_workspace(CONFIG, 3, 8, NUM_HEADS, LATENT, torch.device("cpu"))
    out = triton_kernel.mla_decode(
        q, pool, torch.cat((tables, tables[:1])),
        torch.tensor([*ends, ends[-1] + 1], dtype=torch.int32), torch.tensor([*seq_lens, 0], dtype=torch.int32),
        SCALE, W_UV, max_query_len=8, workspace=workspace, config=CONFIG, pdl=False,
    )  # fmt: skip
    assert torch.equal(out[:-1], attend([0, 2], pool, tables))
    assert torch.equal(out[-1], torch.zeros(NUM_HEADS, VALUE))


def test_a_block_that_no_tile_divides_is_refused() -> None:
    pool, tables = paged([0])
    with pytest.raises(ValueError, match="blocks of 12 tokens: a tile of 8"):
        attend([0], pool[:, :12], tables)


@pytest.mark.parametrize(("num_parts", "num_tokens"), [(1, 1), (3, 20)])
def test_absorb_sums_rotates_scales_and_takes_the_query_to_the_latents(num_parts: int, num_tokens: int) -> None:
    parts = torch.randn(num_parts, num_tokens, NUM_HEADS * (NOPE + ROPE), generator=GENERATOR)
    positions = torch.arange(num_tokens) * 700
    rotation = rope.rotation(positions, torch.linspace(1, 1e-4, ROPE // 2))
    query_scale = 1 + 0.1 * torch.rand(num_tokens, generator=GENERATOR)
    out = triton_kernel.absorb(parts, rotation, query_scale, W_UK, config=CONFIG, pdl=False)
    q = parts.sum(0).view(num_tokens, NUM_HEADS, -1)
    q_nope, q_rope = q[..., :NOPE], rope.rope(q[..., NOPE:], rotation)
    expected = torch.cat((torch.einsum("tnd,ndl->tnl", q_nope, W_UK), q_rope), dim=-1) * query_scale[:, None, None]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
