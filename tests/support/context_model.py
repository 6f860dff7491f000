"""A language model for tests of everything around the model: its logits are a hash of the whole context.

It reads that context back from the latent pool, as attention does. So a wrong slot, block table, position or chunk
changes every token that follows, and `logits_of` tells what is right without any engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.runner.latent_pool import allocate_latent_pool

VOCAB_SIZE = 320


def logits_of(token_ids: Sequence[int]) -> np.ndarray:
    """[VOCAB_SIZE] float32 after this context."""
    digest = hashlib.blake2b(np.array(token_ids, dtype=np.int64).tobytes(), digest_size=8).digest()
    generator = np.random.default_rng(int.from_bytes(digest, "little"))
    return generator.standard_normal(VOCAB_SIZE).astype(np.float32)


def greedy_continuation(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What a greedy engine must answer, computed one step at a time."""
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(int(logits_of(context).argmax()))
    return context[len(prompt) :]


def make_pool(num_blocks: int, block_size_tokens: int) -> Tensor:
    pool = allocate_latent_pool(1, num_blocks, block_size_tokens, torch.device("cpu"), torch.float32)
    return pool.fill_(torch.nan)  # what was never written must never be read


class ContextModel:
    """A `LanguageModel`. `sick_token`: a context that holds it gives NaN. `error`: raised by the next pass, once."""

    def __init__(self, sick_token: int | None = None) -> None:
        self.sick_token = sick_token
        self.error: Exception | None = None
        self.num_tokens_per_pass: list[int] = []

    def forward(self, batch: ForwardBatch, latent_pool: Tensor) -> Tensor:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.num_tokens_per_pass.append(len(batch.input_ids))
        pool = latent_pool[0]
        slots = pool.flatten(0, 1)  # [num_blocks * block_size, 320], a view
        slots[batch.slot_mapping, 0] = batch.input_ids.float()
        slots[batch.slot_mapping, 1] = batch.positions.float()
        rows = []
        for row in batch.logits_rows.tolist():
            request = int(np.searchsorted(batch.cu_seqlens_q, row, side="right")) - 1
            context = self._read(pool, batch, request, int(batch.positions[row]) + 1)
            sick = self.sick_token in context
            rows.append(torch.full((VOCAB_SIZE,), torch.nan) if sick else torch.from_numpy(logits_of(context)))
        return torch.stack(rows) if rows else torch.empty(0, VOCAB_SIZE)

    @staticmethod
    def _read(pool: Tensor, batch: ForwardBatch, request: int, num_tokens: int) -> list[int]:
        if num_tokens > batch.seq_lens[request]:
            raise RuntimeError(f"position {num_tokens - 1} is past seq_len {batch.seq_lens[request]}")
        positions = torch.arange(num_tokens)
        size = pool.shape[1]
        latents = pool[batch.block_tables[request, positions // size], positions % size]
        if not torch.equal(latents[:, 1], positions.float()):
            raise RuntimeError(f"the cache of request {request} holds positions {latents[:, 1].tolist()}")
        return [int(token_id) for token_id in latents[:, 0].tolist()]
