"""Plain PyTorch of kernels/sampling; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor

OK, NOT_FINITE, NOTHING_ALLOWED = 0, 1, 2

# The likeliest token's weight. 131,072 tokens of this weight sum to 2^57, which int64 holds; a token less
# likely than 2^-40 of the likeliest is never drawn, which no one can observe.
_ONE = float(1 << 40)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
    bitmask: Tensor,
    mask_rows: Tensor,
) -> tuple[Tensor, Tensor]:
    """logits [R, V] -> token_ids [R] int64, status [R] int32; the other shapes as in the contract."""
    status = torch.where(torch.isfinite(logits).all(dim=-1), OK, NOT_FINITE)
    logits = _allowed(logits, bitmask, mask_rows)
    possible = (logits > -torch.inf).any(dim=-1)
    status = torch.where((status == OK) & ~possible, NOTHING_ALLOWED, status)
    token_ids = logits.argmax(dim=-1)  # the lowest id among equals

    (drawn,) = torch.nonzero((status == OK) & (temperature > 0), as_tuple=True)
    if len(drawn):
        weights = _weights(logits[drawn], temperature[drawn, None], min_p[drawn, None])
        (filtered,) = torch.nonzero((top_k[drawn] > 0) | (top_p[drawn] < 1), as_tuple=True)
        if len(filtered):
            rows = drawn[filtered]
            weights[filtered] = _keep_top(weights[filtered], top_k[rows, None], top_p[rows, None])
        token_ids[drawn] = _draw(weights, uniform[drawn, None])
    return token_ids, status.int()


def _allowed(logits: Tensor, bitmask: Tensor, mask_rows: Tensor) -> Tensor:
    """A copy of `logits` in which what a row may not say is -inf; `logits` itself if nothing is forbidden."""
    (constrained,) = torch.nonzero(mask_rows >= 0, as_tuple=True)
    if not len(constrained):
        return logits
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (bitmask[mask_rows[constrained].long()][:, :, None] >> bits) & 1 == 1  # [C, W, 32]
    forbidden = ~allowed.flatten(1)[:, : logits.shape[1]]
    logits = logits.clone()
    logits[constrained] = logits[constrained].masked_fill(forbidden, -torch.inf)
    return logits


def _weights(logits: Tensor, temperature: Tensor, min_p: Tensor) -> Tensor:
    """logits [D, V] with -inf for what is forbidden -> [D, V] int64."""
    # The difference first: dividing by a tiny temperature could overflow the largest logit itself.
    below_likeliest = logits - logits.amax(dim=-1, keepdim=True)
    probabilities = torch.exp(below_likeliest / temperature)  # relative to the likeliest
    return (probabilities * (probabilities >= min_p)).double().mul_(_ONE).long()


def _keep_top(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """weights [F, V], top_k and top_p [F, 1] -> weights with 0 for what is not kept."""
    num_tokens = weights.shape[1]
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    top_k = torch.where(top_k > 0, top_k, num_tokens)
    ordered = ordered * (torch.arange(num_tokens, device=weights.device) < top_k)
    cumulative = ordered.cumsum(dim=-1)
    needed = (top_p * cumulative[:, -1:]).ceil().long()
    before = cumulative - ordered  # what the likelier ones hold together
    keep = before < needed
    keep[:, 0] = True  # top_p 0 is greedy
    return torch.zeros_like(weights).scatter_(1, order, ordered * keep)


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """weights [D, V], uniform [D, 1] -> token_ids [D], by the inverse distribution function."""
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    target = torch.minimum((uniform * total).long(), total - 1)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)  # first whose sum exceeds the target
