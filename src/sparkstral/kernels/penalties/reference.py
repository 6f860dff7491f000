"""Plain PyTorch of kernels/penalties; the contract stands in the folder's `__init__`."""

from __future__ import annotations

import torch
from torch import Tensor

IN_PROMPT = 1 << 30


def change_logits(
    logits: Tensor,
    table: Tensor,
    records: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
    num_biases: Tensor,
) -> Tensor:
    """Shapes as in the contract."""
    vocab_size = logits.shape[1]
    max_biases = (table.shape[1] - vocab_size) // 2
    logits = logits.clone()
    for row, record in enumerate(records.tolist()):
        if record < 0:
            continue
        held, changed = table[record, :vocab_size], logits[row]
        repeated = torch.where(changed > 0, changed / repetition[row], changed * repetition[row])
        changed = torch.where(held != 0, repeated, changed)
        counts = held & (IN_PROMPT - 1)
        changed = torch.where(counts > 0, changed - (presence[row] + frequency[row] * counts).float(), changed)
        count = int(num_biases[row])
        token_ids = table[record, vocab_size : vocab_size + count].long()
        biases = table[record, vocab_size + max_biases :][:count].view(torch.float32)
        logits[row] = changed.index_add(0, token_ids, biases)
    return logits


def note_tokens(table: Tensor, records: Tensor, token_ids: Tensor, status: Tensor) -> None:
    """Shapes as in the contract."""
    (noted,) = torch.nonzero((records >= 0) & (status == 0), as_tuple=True)
    ones = torch.ones(len(noted), dtype=table.dtype, device=table.device)
    table.index_put_((records[noted].long(), token_ids[noted]), ones, accumulate=True)
