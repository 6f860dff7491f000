"""How likely the model itself found a token.

Owns the arithmetic, over logits that nothing has changed yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkstral.types import TokenLogprob


def logprobs_of(logits: Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    """logits [N, V] float32, token_ids N -> N log probabilities, each with the `num_top` likeliest tokens."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, dtype=torch.int64).to(logits.device)[:, None])[:, 0].tolist()
    values, ids = logprobs.topk(min(num_top, logits.shape[1]), dim=-1)
    tops = (tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True))
    return tuple(TokenLogprob(t, p, top) for t, p, top in zip(token_ids, chosen, tops, strict=True))
