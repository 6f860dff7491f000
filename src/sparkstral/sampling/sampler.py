"""The choice of the next token: filters, then one seeded draw for each row.

Owns the order of the filters and the arithmetic of the draw; must not know requests' text or the scheduler.

A row's result depends on its own logits, parameters, seed and position alone. To hold that on any device and
in any batch, probabilities become integers (fixed point, the likeliest token has 2^40) before they are
summed: integer sums do not depend on the order of addition, so neither the batch nor the path taken moves a
boundary.
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

from sparkstral.types import Failure, SamplingParams

# The likeliest token's weight. 131,072 tokens of this weight sum to 2^57, which int64 holds; a token less
# likely than 2^-40 of the likeliest is never drawn, which no one can observe.
_ONE = float(1 << 40)
_TINY = torch.finfo(torch.float32).tiny


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


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int | Failure]:
    """Choose a token for each row.

    logits: [R, V] float32, not changed. Returns R token ids; a row with a NaN or an infinity, or whose mask
    allows nothing, gets a `Failure` in its place and disturbs no other row.
    """
    finite = torch.isfinite(logits).all(dim=-1)
    logits = _mask(logits, rows)
    possible = (logits > -torch.inf).any(dim=-1)
    token_ids = logits.argmax(dim=-1)  # the lowest id among equals

    usable = (finite & possible).tolist()
    drawn = [i for i, row in enumerate(rows) if usable[i] and row.params.temperature > 0]
    if drawn:
        token_ids[drawn] = _draw(logits[drawn], [rows[i] for i in drawn])

    results: list[int | Failure] = list(token_ids.tolist())
    for i, is_finite in enumerate(finite.tolist()):
        if not is_finite:
            results[i] = Failure("numerics", "The model's output for this request was not a finite number.")
        elif not usable[i]:
            results[i] = Failure("grammar", "The request's constraints leave no token that could come next.")
    return results


def _mask(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """A copy of `logits` in which what a row may not say is -inf; `logits` itself if nothing is forbidden."""
    constrained = [i for i, row in enumerate(rows) if row.bitmask is not None]
    banned = [(i, token_id) for i, row in enumerate(rows) for token_id in row.params.banned_token_ids]
    if not constrained and not banned:
        return logits
    logits = logits.clone()
    if constrained:
        words = torch.from_numpy(np.stack([row.bitmask for row in rows if row.bitmask is not None]))
        bits = torch.arange(32, dtype=torch.int32, device=logits.device)
        allowed = (words.to(logits.device)[:, :, None] >> bits) & 1 == 1  # [C, W, 32]
        forbidden = ~allowed.flatten(1)[:, : logits.shape[1]]
        logits[constrained] = logits[constrained].masked_fill(forbidden, -torch.inf)
    if banned:
        row_indices, token_ids = torch.tensor(banned, device=logits.device).T
        logits[row_indices, token_ids] = -torch.inf
    return logits


def _draw(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """[D, V] logits with -inf for what is forbidden → [D] int64 token ids, by the inverse distribution function."""
    device = logits.device
    # What float32 would round to 0 is as good as greedy, and must not divide by 0.
    temperature = _column([max(row.params.temperature, _TINY) for row in rows], device)
    # The difference first: dividing by a tiny temperature could overflow the largest logit itself.
    below_likeliest = logits - logits.amax(dim=-1, keepdim=True)
    probabilities = torch.exp(below_likeliest / temperature)  # relative to the likeliest
    min_p = _column([row.params.min_p for row in rows], device)
    weights = (probabilities * (probabilities >= min_p)).double().mul_(_ONE).long()

    filtered = [i for i, row in enumerate(rows) if row.params.top_k > 0 or row.params.top_p < 1]
    if filtered:
        weights[filtered] = _keep_top(weights[filtered], [rows[i].params for i in filtered])

    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    draws = [[draw_uniform(row.seed, row.position)] for row in rows]
    uniform = torch.tensor(draws, dtype=torch.float64).to(device)
    target = torch.minimum((uniform * total).long(), total - 1)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)  # first whose sum exceeds the target


def _keep_top(weights: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Zero all but the top_k likeliest, and of these all but the fewest that hold top_p of what top_k left.

    Among equals the lowest id stays. weights: [F, V] int64.
    """
    num_tokens = weights.shape[1]
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([[p.top_k or num_tokens] for p in params], device=weights.device)
    ordered = ordered * (torch.arange(num_tokens, device=weights.device) < top_k)
    cumulative = ordered.cumsum(dim=-1)
    top_p = torch.tensor([[p.top_p] for p in params], dtype=torch.float64).to(weights.device)
    needed = (top_p * cumulative[:, -1:]).ceil().long()
    before = cumulative - ordered  # what the likelier ones hold together
    keep = before < needed
    keep[:, 0] = True  # top_p 0 is greedy
    return torch.zeros_like(weights).scatter_(1, order, ordered * keep)


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).to(device)[:, None]
