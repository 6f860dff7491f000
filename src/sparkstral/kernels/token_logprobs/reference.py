"""Plain PyTorch of kernels/token_logprobs; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkstral.types import MAX_TOP_LOGPROBS

MAX_TOP = MAX_TOP_LOGPROBS


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: Tensor) -> Tensor:
    """Shapes as in the contract; a row's unused words are 0."""
    out = torch.zeros(len(logits), 1 + 2 * MAX_TOP, dtype=torch.int32, device=logits.device)
    for row, count in enumerate(num_top.tolist()):
        if count < 0:
            continue
        logprobs = torch.log_softmax(logits[row], dim=-1)
        order = logits[row].sort(descending=True, stable=True).indices[:count]
        out[row, :1] = logprobs[token_ids[row], None].view(torch.int32)
        out[row, 1 : 1 + count] = logprobs[order].view(torch.int32)
        out[row, 1 + MAX_TOP :][:count] = order.int()
    return out
