"""Packs rendered conversations, whole, into rows of a fixed number of tokens.

Owns the packed form (ids, labels, loss weights, cu_seqlens) and which share of the tokens the long documents
take; must not know the model. A batch depends on its seed alone, so a run can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tools.demo.rendering import PAD, Rendered

IGNORED_LABEL = -100


class Document(Protocol):
    """Makes one rendered conversation from a source of chance."""

    def __call__(self, rng: random.Random) -> Rendered: ...


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One row of T tokens: D documents one after the other, the last one padding if there is a rest.

    token_ids [T] int32; labels [T] int32, the id that follows within the document where the assistant says
    it, else -100; weights [T] float32, the share of that token in the loss; cu_seqlens [D + 1] int32.
    """

    token_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    weights: NDArray[np.float32]
    cu_seqlens: NDArray[np.int32]

    @property
    def positions(self) -> NDArray[np.int64]:
        """[T] position of each token in its own document."""
        begins = np.repeat(self.cu_seqlens[:-1], np.diff(self.cu_seqlens))
        return np.arange(self.token_ids.size, dtype=np.int64) - begins

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest document."""
        return int(np.diff(self.cu_seqlens).max())


def pack(documents: list[tuple[Rendered, float]], num_tokens: int) -> PackedBatch:
    """Lay documents (with the loss weight of their tokens) into one row of `num_tokens`; the rest is padding.

    Raises ValueError if they are longer than the row.
    """
    token_ids = np.full(num_tokens, PAD, dtype=np.int32)
    labels = np.full(num_tokens, IGNORED_LABEL, dtype=np.int32)
    weights = np.zeros(num_tokens, dtype=np.float32)
    ends = [0]
    for rendered, weight in documents:
        begin = ends[-1]
        end = begin + len(rendered.token_ids)
        if end > num_tokens:
            raise ValueError(f"{len(documents)} documents hold more than {num_tokens} tokens.")
        token_ids[begin:end] = rendered.token_ids
        for span_begin, span_end in rendered.spans:
            said = slice(begin + span_begin - 1, begin + span_end - 1)
            labels[said] = rendered.token_ids[span_begin:span_end]
            weights[said] = weight
        ends.append(end)
    if ends[-1] < num_tokens:
        ends.append(num_tokens)
    return PackedBatch(token_ids, labels, weights, np.asarray(ends, dtype=np.int32))


@dataclass(frozen=True, slots=True)
class Mixture:
    """What a batch holds: `long_share` of its tokens from `long` documents (each at most
    `max_document_tokens`, with `long_weight` for each token in the loss), the rest from `short` ones."""

    short: Document
    long: Document
    num_tokens: int
    long_share: float
    long_weight: float
    max_document_tokens: int

    def batch(self, seed: int) -> PackedBatch:
        """The batch of this seed."""
        rng = random.Random(seed)
        documents: list[tuple[Rendered, float]] = []
        used = 0
        # Rounding at random keeps the share right on average although one long document can be a third of a
        # row.
        long_budget = self.long_share * self.num_tokens
        while used < long_budget and used + self.max_document_tokens <= self.num_tokens:
            rendered = self.long(rng)
            length = len(rendered.token_ids)
            if length > self.max_document_tokens:
                continue
            if used + length > long_budget and rng.random() > (long_budget - used) / length:
                break
            documents.append((rendered, self.long_weight))
            used += length
        misses = 0
        while misses < 4:
            rendered = self.short(rng)
            length = len(rendered.token_ids)
            if used + length > self.num_tokens:
                misses += 1
                continue
            documents.append((rendered, 1.0))
            used += length
        return pack(documents, self.num_tokens)

    def batches(self, seed: int, first: int, step: int) -> Iterator[PackedBatch]:
        """Batches first, first + step, first + 2 step, … of a run."""
        index = first
        while True:
            yield self.batch(seed * 1_000_003 + index)
            index += step
