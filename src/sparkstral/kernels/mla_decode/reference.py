"""Plain PyTorch of kernels/mla_decode; the contract stands in the folder's `__init__`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def mla_decode(
    q: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: tuple[int, ...],
    seq_lens: tuple[int, ...],
    softmax_scale: float,
    value_width: int,
) -> Tensor:
    """q [T, N, W + P] -> [T, N, value_width]; the other shapes as in the contract."""
    num_heads = q.shape[1]
    out = q.new_empty(*q.shape[:2], value_width)
    block_size = pool.shape[1]
    for table, (begin, end), seq_len in zip(block_tables, pairwise(cu_seqlens_q), seq_lens, strict=True):
        num_blocks = -(-seq_len // block_size)
        latents = pool.index_select(0, table[:num_blocks]).flatten(0, 1)[:seq_len].float()
        scores = (q[begin:end].float().flatten(0, 1) * softmax_scale) @ latents.T  # [n·N, S]
        num_queries = end - begin
        if num_queries > 1:
            key_ids = torch.arange(seq_len, device=q.device)
            unseen = key_ids > key_ids[seq_len - num_queries :, None]
            scores.view(num_queries, num_heads, seq_len).masked_fill_(unseen.unsqueeze(1), float("-inf"))
        out[begin:end] = (scores.softmax(-1) @ latents[:, :value_width]).view(num_queries, num_heads, -1)
    return out
