"""The choice of the next token: filters, then one seeded draw for each row.

Owns what a request's parameters mean for a row and where its random number comes from; kernels/sampling owns the
arithmetic. Must not know requests' text or the scheduler. A row's result depends on its own logits, parameters,
seed and position alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkstral.kernels import sampling
from sparkstral.types import Failure, SamplingParams

_TINY = torch.finfo(torch.float32).tiny
FAILURES = {
    sampling.NOT_FINITE: Failure("numerics", "The model's output for this request was not a finite number."),
    sampling.NOTHING_ALLOWED: Failure("grammar", "The request's constraints leave no token that could come next."),
}


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What one row needs beside its logits. `position` is the token's index among the request's outputs."""

    params: SamplingParams
    seed: int
    position: int
    bitmask: NDArray[np.int32] | None = None  # [ceil(V / 32)]: bit v % 32 of word v // 32 allows token v


def derive_seed(base_seed: int, request_id: str) -> int:
    """The seed of a request that brought none: the same after a preemption, another for each request."""
    digest = hashlib.blake2b(f"{base_seed}:{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def draw_uniform(seed: int, position: int) -> float:
    """A number in [0, 1) of 53 random bits: a hash of (seed, position), so no generator's state is kept."""
    key = struct.pack("<Qq", seed & 0xFFFF_FFFF_FFFF_FFFF, position)
    return (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 11) * 2.0**-53


def divisor(params: SamplingParams) -> float:
    """The temperature, or 0 for greedy: what float32 cannot hold in full precision is as good, and must not divide."""
    return params.temperature if params.temperature >= _TINY else 0.0


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int | Failure]:
    """Choose a token for each row.

    logits: [R, V] float32, not changed. Returns R token ids; a row with a NaN or an infinity, or whose mask
    allows nothing, gets a `Failure` in its place and disturbs no other row.
    """
    bitmask, mask_rows = _constraints(rows, logits.shape[1])

    def column(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(logits.device)

    token_ids, status = sampling.sample(
        logits,
        column([divisor(row.params) for row in rows], torch.float32),
        column([row.params.top_k for row in rows], torch.int32),
        column([row.params.top_p for row in rows], torch.float64),
        column([row.params.min_p for row in rows], torch.float32),
        column([draw_uniform(row.seed, row.position) for row in rows], torch.float64),
        bitmask.to(logits.device),
        mask_rows.to(logits.device),
    )
    return [
        FAILURES[code] if code else token_id
        for token_id, code in zip(token_ids.tolist(), status.tolist(), strict=True)
    ]


def _constraints(rows: Sequence[SamplingRow], vocab_size: int) -> tuple[Tensor, Tensor]:
    """bitmask [B, ceil(V / 32)] int32 of the rows that may not say everything, and which is whose (-1: free)."""
    masks: list[NDArray[np.int32]] = []
    mask_rows = []
    for row in rows:
        if row.bitmask is None and not row.params.banned_token_ids:
            mask_rows.append(-1)
            continue
        mask = np.empty((vocab_size + 31) // 32, dtype=np.int32)
        fill_mask(mask, row.bitmask, row.params)
        mask_rows.append(len(masks))
        masks.append(mask)
    stacked = np.stack(masks) if masks else np.empty((0, 0), dtype=np.int32)
    return torch.from_numpy(stacked), torch.tensor(mask_rows, dtype=torch.int32)


def fill_mask(out: NDArray[np.int32], bitmask: NDArray[np.int32] | None, params: SamplingParams) -> None:
    """Write what a row may say into `out` [ceil(V / 32)]: what `bitmask` allows (None: all), less what is banned."""
    out[:] = -1 if bitmask is None else bitmask
    words = out.view(np.uint32)
    for token_id in params.banned_token_ids:
        words[token_id // 32] &= 0xFFFF_FFFF ^ (1 << token_id % 32)
