"""What one forward pass needs, whole (law L3: there is no other state).

T tokens of R requests, concatenated; B blocks in the longest table; L rows whose logits are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """Tokens whose embeddings are those of images."""

    tokens: Tensor  # [K] int64, into T
    embeddings: Tensor  # [K, H]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64: block_id * block_size + offset, where this token's latent is written
    block_tables: Tensor  # [R, B] int64, padded with 0
    cu_seqlens_q: tuple[int, ...]  # R + 1: where each request's tokens begin and end
    seq_lens: tuple[int, ...]  # R: tokens in the cache after this pass, these included
    logits_rows: Tensor  # [L] int64, into T
    images: ImageTokens | None = None
