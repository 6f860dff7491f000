"""Guesses from the request's own text: what followed the last few tokens when they stood there before.

Owns the index of a request's n-grams; no weights, no tensors. Answers that copy (code that is edited, JSON, quotes,
arguments of tools) repeat their prompt; others find nothing and cost nothing. Source of the idea: prompt lookup
decoding, Saxena 2023.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparkstral.speculative.proposer import StepContext
from sparkstral.types import NewRequest

GRAM_SIZES = (4, 3, 2)  # tokens that must agree, the longest first: a longer agreement is more often right
MIN_RECENT = 4096  # tokens since the index was sorted, before it is sorted again
_FACTOR = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: an odd number whose multiples spread
_MASK_64 = (1 << 64) - 1


class _Grams:
    """Where each n-gram of one size last ended, by a hash of 64 bits: a sorted table for most of the text, 12 bytes an
    entry, and a dict for what came since. Whoever asks compares the tokens."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._keys = np.zeros(0, dtype=np.uint64)
        self._ends = np.zeros(0, dtype=np.int32)
        self._recent: dict[int, int] = {}

    def rebuild(self, tokens: NDArray[np.int32]) -> None:
        """Sort all grams of `tokens` but the last, which nothing follows."""
        self._recent.clear()
        if len(tokens) <= self.size:
            return
        windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], self.size)
        hashes = np.zeros(len(windows), dtype=np.uint64)
        for column in windows.T:
            hashes = (hashes + column.astype(np.uint64) + np.uint64(1)) * np.uint64(_FACTOR)
        # From the end, so that the first of equals is the latest.
        self._keys, places = np.unique(hashes[::-1], return_index=True)
        self._ends = (len(tokens) - 1 - places).astype(np.int32)

    def add(self, gram: Sequence[int], end: int) -> None:
        self._recent[_hash(gram)] = end

    def find(self, gram: Sequence[int]) -> int:
        """Where it last ended, or 0."""
        key = _hash(gram)
        end = self._recent.get(key)
        if end is None:
            place = int(np.searchsorted(self._keys, np.uint64(key)))
            end = int(self._ends[place]) if place < len(self._keys) and self._keys[place] == key else 0
        return end


def _hash(gram: Sequence[int]) -> int:
    value = 0
    for token in gram:
        value = (value + token + 1) * _FACTOR & _MASK_64
    return value


class NgramIndex:
    """The tokens of one request, and where its n-grams are: about 45 bytes a token."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = array("i", tokens)
        self._grams = [_Grams(size) for size in GRAM_SIZES]
        self._rebuild()

    def _rebuild(self) -> None:
        tokens = np.array(self._tokens, dtype=np.int32)
        for grams in self._grams:
            grams.rebuild(tokens)
        self._next_rebuild = max(len(tokens) + MIN_RECENT, len(tokens) * 9 // 8)

    def append(self, token: int) -> None:
        """Constant time but for the sorting, which is put off until the text has grown by an eighth."""
        length = len(self._tokens)
        for grams in self._grams:  # only now has the last gram something behind it
            if length >= grams.size:
                grams.add(self._tokens[-grams.size :], length)
        self._tokens.append(token)
        if length >= self._next_rebuild:
            self._rebuild()

    def guess(self, num_tokens: int) -> tuple[int, ...]:
        """What followed the longest known end of the text, where it last stood; a period goes on as it went."""
        tokens, length = self._tokens, len(self._tokens)
        for grams in self._grams:
            if length <= grams.size:
                continue
            gram = tokens[-grams.size :]
            end = grams.find(gram)
            if end and tokens[end - grams.size : end] == gram:
                period = length - end
                return tuple(tokens[end + i % period] for i in range(num_tokens))
        return ()


class PromptLookup:
    """A `Proposer`."""

    reads_hidden = False

    def __init__(self) -> None:
        self._indexes: dict[str, NgramIndex] = {}

    def begin(self, request: NewRequest) -> None:
        self._indexes[request.request_id] = NgramIndex((*request.prompt_token_ids, *request.output_token_ids))

    def forget(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)

    def propose(self, step: StepContext) -> dict[str, tuple[int, ...]]:
        guesses = {}
        for row in step.scheduled:
            index = self._indexes.get(row.request_id)
            if index is None:
                continue
            for token in step.sampled.get(row.request_id, ()):
                index.append(token)
            if row.num_wanted_drafts and row.request_id in step.sampled:
                guess = index.guess(row.num_wanted_drafts)
                if guess:
                    guesses[row.request_id] = guess
        return guesses
