"""How likely the model itself found a token.

Owns the arithmetic, over logits that nothing has changed yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkstral.kernels.token_logprobs import MAX_TOP
from sparkstral.types import TokenLogprob


def logprobs_of(logits: Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    """logits [N, V] float32, token_ids N -> N log probabilities, each with the `num_top` likeliest tokens."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, dtype=torch.int64).to(logits.device)[:, None])[:, 0].tolist()
    values, ids = logprobs.topk(min(num_top, logits.shape[1]), dim=-1)
    tops = (tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True))
    return tuple(TokenLogprob(t, p, top) for t, p, top in zip(token_ids, chosen, tops, strict=True))


def read_logprobs(words: NDArray[np.int32], token_id: int, num_top: int) -> TokenLogprob:
    """What kernels/token_logprobs wrote of a row [1 + 2 MAX_TOP] whose token is `token_id`."""
    logprob, *tops = words[: 1 + num_top].view(np.float32).tolist()
    return TokenLogprob(token_id, logprob, tuple(zip(words[1 + MAX_TOP :].tolist(), tops, strict=False)))
