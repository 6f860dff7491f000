"""A planned step as the tensors of one forward pass.

Owns where each token's latent goes; must not know why a request is in the step (scheduler/).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch

from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.runner.encoder_cache import EncoderCache
from sparkstral.types import ScheduledRequest


def build_forward_batch(
    scheduled: Sequence[ScheduledRequest],
    block_size_tokens: int,
    device: torch.device,
    with_all_logits: Container[str] = (),
    encoder: EncoderCache | None = None,
) -> ForwardBatch:
    """One request after the other, in the order of `scheduled`; logits for the last token of each that samples and for
    its drafts, and for every token of the requests in `with_all_logits`."""
    num_tokens = [len(request.token_ids) for request in scheduled]
    cu_seqlens_q = (0, *accumulate(num_tokens))
    width = max(len(request.block_ids) for request in scheduled)
    block_tables = np.zeros((len(scheduled), width), dtype=np.int64)
    positions = np.empty(cu_seqlens_q[-1], dtype=np.int64)
    slot_mapping = np.empty_like(positions)
    for i, request in enumerate(scheduled):
        block_tables[i, : len(request.block_ids)] = request.block_ids
        rows = slice(cu_seqlens_q[i], cu_seqlens_q[i + 1])
        first = request.num_computed_tokens
        positions[rows] = np.arange(first, first + num_tokens[i])
        block_ids = block_tables[i, positions[rows] // block_size_tokens]
        slot_mapping[rows] = block_ids * block_size_tokens + positions[rows] % block_size_tokens
    input_ids = [token_id for request in scheduled for token_id in request.token_ids]
    logits_rows: list[int] = []
    for request, (begin, end) in zip(scheduled, pairwise(cu_seqlens_q), strict=True):
        if request.request_id in with_all_logits:
            logits_rows += range(begin, end)
        elif request.samples:
            logits_rows += range(end - 1 - request.num_drafts, end)
    return ForwardBatch(
        input_ids=torch.tensor(input_ids, dtype=torch.int64).to(device),
        positions=torch.from_numpy(positions).to(device),
        slot_mapping=torch.from_numpy(slot_mapping).to(device),
        block_tables=torch.from_numpy(block_tables).to(device),
        cu_seqlens_q=cu_seqlens_q,
        seq_lens=tuple(r.num_computed_tokens + n for r, n in zip(scheduled, num_tokens, strict=True)),
        logits_rows=torch.tensor(logits_rows, dtype=torch.int64).to(device),
        images=encoder.tokens(scheduled, cu_seqlens_q[:-1]) if encoder is not None else None,
    )
