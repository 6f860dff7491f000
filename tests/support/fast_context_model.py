"""`ContextModel` for the fast runner. tests/conftest.py has Triton interpret."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkstral.model.fast_batch import FastBatch
from tests.support.context_model import VOCAB_SIZE, logits_of
from tests.support.fast_model import LIMITS, small_configs


class FastContextModel:
    """A `FastModel` whose logits are a hash of the context, which every form of attention reads back."""

    def __init__(self, sick_token: int | None = None) -> None:
        self.sick_token = sick_token
        self.kernels = small_configs()
        self.limits = LIMITS
        self.num_tokens_per_pass: list[int] = []

    def forward(self, batch: FastBatch, latent_pool: Tensor) -> Tensor:
        return self.logits(self.hidden(batch, latent_pool))

    def logits(self, x: Tensor) -> Tensor:
        return x

    def hidden(self, batch: FastBatch, latent_pool: Tensor) -> Tensor:
        token_ids = torch.where(batch.sources >= 0, batch.previous[batch.sources.clamp(min=0).long()], batch.input_ids)
        self.num_tokens_per_pass.append(len(token_ids))
        slots = latent_pool[0].flatten(0, 1)
        real = batch.slots >= 0
        slots[batch.slots[real], 0] = token_ids[real].float()
        slots[batch.slots[real], 1] = batch.positions[real].float()
        slots_of_row = self._slots_of_rows(batch, latent_pool.shape[2])
        logits = []
        for row in range(len(token_ids)) if batch.logits_rows is None else batch.logits_rows.tolist():
            seen = slots[slots_of_row[row][: int(batch.positions[row]) + 1]] if row in slots_of_row else slots[:0]
            if not torch.equal(seen[:, 1], torch.arange(len(seen)).float()):
                raise RuntimeError(f"the cache of row {row} holds positions {seen[:, 1].tolist()}")
            context = [int(token_id) for token_id in seen[:, 0].tolist()]
            sick = self.sick_token in context
            logits.append(torch.full((VOCAB_SIZE,), torch.nan) if sick else torch.from_numpy(logits_of(context)))
        return torch.stack(logits) if logits else torch.empty(0, VOCAB_SIZE)

    @staticmethod
    def _slots_of_rows(batch: FastBatch, block_size: int) -> dict[int, Tensor]:
        """Where the context of each row's request lies; padding has none."""
        found: dict[int, Tensor] = {}
        for group in batch.absorbed:
            for request, seq_len in enumerate(group.seq_lens.tolist()):
                positions = torch.arange(seq_len)
                slots = group.block_tables[request, positions // block_size].long() * block_size
                begin, end = (group.rows.start + int(n) for n in group.cu_seqlens_q[request : request + 2])
                if seq_len:
                    found |= dict.fromkeys(range(begin, end), slots + positions % block_size)
        if batch.expanded is not None:
            (part,) = batch.expanded.passes
            for first_row, num_queries, seq_len, first_slot, _, _ in part.pieces.tolist():
                begin = batch.expanded.rows.start + first_row
                found |= dict.fromkeys(range(begin, begin + num_queries), part.slots[first_slot : first_slot + seq_len])
        return found
