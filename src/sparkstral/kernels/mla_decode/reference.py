"""Plain PyTorch of kernels/mla_decode; the contract stands in the folder's `__init__`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from sparkstral.kernels import latent_pool

_MAX_SCORES = 1 << 25  # of one request at a time: 128 MiB, however many queries meet however long a context


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
    out = q.new_empty(*q.shape[:2], value_width)
    block_size = pool.shape[1]
    for table, (begin, end), seq_len in zip(block_tables, pairwise(cu_seqlens_q), seq_lens, strict=True):
        num_blocks = -(-seq_len // block_size)
        latents = latent_pool.read_blocks(pool, table[:num_blocks])[:seq_len].float()
        step = max(1, _MAX_SCORES // (q.shape[1] * seq_len))
        for first in range(begin, end, step):
            last = min(first + step, end)
            seen = latents[: seq_len - (end - last)]
            out[first:last] = _attend(q[first:last].float() * softmax_scale, seen, value_width)
    return out


def _attend(q: Tensor, latents: Tensor, value_width: int) -> Tensor:
    """The last n of S tokens attend: q [n, N, D], latents [S, D] -> [n, N, value_width]."""
    num_queries, num_heads, _ = q.shape
    scores = (q.flatten(0, 1) @ latents.T).view(num_queries, num_heads, -1)
    if num_queries > 1:
        key_ids = torch.arange(len(latents), device=q.device)
        unseen = key_ids > key_ids[-num_queries:, None]
        scores.masked_fill_(unseen.unsqueeze(1), float("-inf"))
    return scores.softmax(-1) @ latents[:, :value_width]
