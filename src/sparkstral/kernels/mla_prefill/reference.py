"""Plain PyTorch of kernels/mla_prefill; the contract stands in the folder's `__init__`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels import latent_pool

# Queries that attend at once when a chunk has context before it. They need a mask, queries x keys: 64 MiB in
# float32 at a context of 16,384 tokens. On one AVX-512 core 256 queries attend at 58 GFLOP/s, 1,024 at 65,
# 2,048 at 63 (8,192 tokens of context, 2026-12-02).
_MASKED_QUERIES = 1024


def mla_prefill(
    q: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: tuple[int, ...],
    seq_lens: tuple[int, ...],
    w_uk: Tensor,
    w_uv: Tensor,
    softmax_scale: float,
) -> Tensor:
    """q [T, N, 64 + P] -> [T, N, 128]; the other shapes as in the contract."""
    out = q.new_empty(*q.shape[:2], w_uv.shape[1])
    block_size = pool.shape[1]
    for table, (begin, end), seq_len in zip(block_tables, pairwise(cu_seqlens_q), seq_lens, strict=True):
        num_blocks = -(-seq_len // block_size)
        latents = latent_pool.read_blocks(pool, table[:num_blocks])[:seq_len].to(q.dtype)
        keys, values = _expand(latents, w_uk, w_uv)
        out[begin:end] = _attend(q[begin:end].transpose(0, 1), keys, values, softmax_scale).transpose(0, 1)
    return out


def _expand(latents: Tensor, w_uk: Tensor, w_uv: Tensor) -> tuple[Tensor, Tensor]:
    """latents [S, W + P] -> keys [N, S, 64 + P], values [N, S, 128]."""
    num_heads, _, width = w_uk.shape
    c_kv, k_rope = latents[:, :width], latents[:, width:]
    k_nope = F.linear(c_kv, w_uk.flatten(0, 1)).view(len(latents), num_heads, -1).transpose(0, 1)
    values = F.linear(c_kv, w_uv.flatten(0, 1)).view(len(latents), num_heads, -1).transpose(0, 1)
    return torch.cat((k_nope, k_rope.expand(num_heads, -1, -1)), dim=-1), values


def _attend(q: Tensor, keys: Tensor, values: Tensor, softmax_scale: float) -> Tensor:
    """The last n of S tokens attend: q [N, n, D], keys [N, S, D], values [N, S, V] -> [N, n, V]."""
    num_queries, num_keys = q.shape[1], keys.shape[1]
    q, keys, values = q.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0)
    if num_queries == num_keys:
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True, scale=softmax_scale).squeeze(0)
    parts = []
    key_ids = torch.arange(num_keys, device=q.device)
    for begin in range(0, num_queries, _MASKED_QUERIES):
        end = min(begin + _MASKED_QUERIES, num_queries)
        seen = num_keys - num_queries + end  # keys that the last query of this part sees
        mask = key_ids[:seen] <= key_ids[num_keys - num_queries + begin : seen, None]
        parts.append(
            F.scaled_dot_product_attention(
                q[:, :, begin:end],
                keys[:, :, :seen],
                values[:, :, :seen],
                attn_mask=mask,
                scale=softmax_scale,
            )
        )
    return torch.cat(parts, dim=2).squeeze(0)
