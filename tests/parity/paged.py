"""Requests over a paged cache: what the runner does for the model, at its plainest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkstral.model.config import LATENT_WIDTH
from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.model.mistral4 import Mistral4

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Chunk:
    """Tokens of one request, from position `start` on; `blocks` hold the request from its beginning."""

    token_ids: list[int]
    start: int
    blocks: list[int]


def new_pool(model: Mistral4, num_blocks: int, fill: float = float("nan")) -> Tensor:
    """A cache in which everything that no token has written is NaN, unless said otherwise."""
    shape = (model.config.num_hidden_layers, num_blocks, BLOCK_SIZE, LATENT_WIDTH)
    return torch.full(shape, fill, dtype=model.dtype)


def batch_of(chunks: list[Chunk]) -> ForwardBatch:
    """One pass over `chunks`, with the logits of every row."""
    ends = [0]
    for chunk in chunks:
        ends.append(ends[-1] + len(chunk.token_ids))
    positions = [range(chunk.start, chunk.start + len(chunk.token_ids)) for chunk in chunks]
    slots = [
        chunk.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for chunk, span in zip(chunks, positions, strict=True)
        for position in span
    ]
    width = max(len(chunk.blocks) for chunk in chunks)
    return ForwardBatch(
        input_ids=torch.tensor([token_id for chunk in chunks for token_id in chunk.token_ids]),
        positions=torch.tensor([position for span in positions for position in span]),
        slot_mapping=torch.tensor(slots),
        block_tables=torch.tensor([chunk.blocks + [0] * (width - len(chunk.blocks)) for chunk in chunks]),
        cu_seqlens_q=tuple(ends),
        seq_lens=tuple(span.stop for span in positions),
        logits_rows=torch.arange(ends[-1]),
    )


def passes(token_ids: list[int], sizes: list[int], blocks: list[int]) -> Iterator[ForwardBatch]:
    """The batches of one request alone, `sizes` tokens a pass."""
    start = 0
    for size in sizes:
        yield batch_of([Chunk(token_ids[start : start + size], start, blocks)])
        start += size
    assert start == len(token_ids)
