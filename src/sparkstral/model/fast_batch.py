"""What one pass of the fast model needs, whole: everything that the device reads is on the device (law L3).

T tokens of R requests, concatenated. Their order is that of the forms of attention: first the requests that take the
absorbed form, then those that take the expanded one, so that each form's rows are a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sparkstral.kernels.mla_prefill.triton_kernel import PrefillPass
from sparkstral.model.forward_batch import ImageTokens
from sparkstral.model.mla import is_absorbed_cheaper

MAX_ABSORBED_QUERIES = 8  # of a request; what kernels/mla_decode is made for


@dataclass(frozen=True, slots=True)
class AbsorbedGroup:
    """Requests that attend in one launch of kernels/mla_decode."""

    rows: slice  # their tokens, into T
    block_tables: Tensor  # [R, B] int32
    cu_seqlens_q: Tensor  # [R + 1] int32, into rows
    seq_lens: Tensor  # [R] int32; 0 pads the batch
    max_query_len: int  # a bound


@dataclass(frozen=True, slots=True)
class ExpandedGroup:
    """Requests that attend by kernels/mla_prefill."""

    rows: slice
    passes: tuple[PrefillPass, ...]


@dataclass(frozen=True, slots=True)
class FastBatch:
    input_ids: Tensor  # [T] int64
    sources: Tensor  # [T] int32: the row of `previous` that holds the token, or -1: it is in input_ids
    previous: Tensor  # [..] int64: what the step before sampled
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64, where the latent is written; negative: nowhere
    absorbed: tuple[AbsorbedGroup, ...]
    expanded: ExpandedGroup | None
    logits_rows: Tensor | None  # [L] int64, into T; None: all
    images: ImageTokens | None = None


@dataclass(frozen=True, slots=True)
class AttentionOrder:
    """Which requests of a step take which form, as indices in the order in which their tokens are to lie."""

    single: tuple[int, ...]  # one query each, absorbed
    several: tuple[int, ...]  # up to MAX_ABSORBED_QUERIES, absorbed
    expanded: tuple[int, ...]

    @classmethod
    def of(cls, num_queries: Sequence[int], seq_lens: Sequence[int], max_num_seqs: int) -> AttentionOrder:
        """As model/mla decides, as far as the decode kernel's workspace (of `max_num_seqs` queries) goes."""
        single: list[int] = []
        several: list[int] = []
        expanded: list[int] = []
        for request, (count, seq_len) in enumerate(zip(num_queries, seq_lens, strict=True)):
            fits = (len(several) + 1) * MAX_ABSORBED_QUERIES <= max_num_seqs
            if count == 1:
                single.append(request)
            elif count <= MAX_ABSORBED_QUERIES and fits and is_absorbed_cheaper(count, seq_len):
                several.append(request)
            else:
                expanded.append(request)
        return cls(tuple(single), tuple(several), tuple(expanded))
