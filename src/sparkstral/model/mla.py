"""Multi-head latent attention of one layer, and which of its two forms a request takes.

Owns the projections and the choice of form; kernels/ own the arithmetic of rotation, cache and attention.
Source: docs/model.md, one decoder layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels import latent_write, mla_decode, mla_prefill, rms_norm, rope
from sparkstral.model.config import (
    KV_LORA_RANK,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    SOFTMAX_SCALE,
    V_HEAD_DIM,
    ModelConfig,
)
from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.model.linear import column_major, to_precision
from sparkstral.model.rope import PositionTerms
from sparkstral.model.weights import AttentionWeights, Weight
from sparkstral.types import Precision

_QK_WIDTHS = [QK_NOPE_HEAD_DIM, QK_ROPE_HEAD_DIM]


def is_absorbed_cheaper(num_query_tokens: int, seq_len: int) -> bool:
    """Whether `num_query_tokens` that end a sequence of `seq_len` tokens should attend in the absorbed form.

    Multiply-adds for each head, n queries over S tokens. Absorbed: n·S·(320 + 256), and n·(64 + 128)·256 to
    bring queries in and values out. Expanded: n·S·(128 + 128), and S·(64 + 128)·256 to make keys and values
    of the latents. The first is less when n·(320·S + 49152) < 49152·S: a decode step always, a whole prompt
    never, a chunk that follows a long context up to 153 tokens. Time agrees: behind 4,000 tokens, on a core,
    the demo takes 147 ms absorbed and 378 expanded for 50 queries, 546 and 614 for 150 (2026-12-02).
    """
    latent = (QK_NOPE_HEAD_DIM + V_HEAD_DIM) * KV_LORA_RANK
    absorbed = num_query_tokens * (seq_len * (2 * KV_LORA_RANK + QK_ROPE_HEAD_DIM) + latent)
    expanded = seq_len * (num_query_tokens * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM + V_HEAD_DIM) + latent)
    return absorbed < expanded


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """The requests of a batch that take one form."""

    rows: slice | Tensor  # their tokens, into T
    block_tables: Tensor
    cu_seqlens_q: tuple[int, ...]  # into rows
    seq_lens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How a batch attends; the same in every layer, so decided once for a forward pass."""

    absorbed: AttentionGroup | None
    expanded: AttentionGroup | None

    @classmethod
    def of(cls, batch: ForwardBatch) -> AttentionPlan:
        spans = list(pairwise(batch.cu_seqlens_q))
        absorbed: list[int] = []
        expanded: list[int] = []
        for request, ((begin, end), seq_len) in enumerate(zip(spans, batch.seq_lens, strict=True)):
            (absorbed if is_absorbed_cheaper(end - begin, seq_len) else expanded).append(request)
        return cls(_group(batch, spans, absorbed), _group(batch, spans, expanded))


def _group(batch: ForwardBatch, spans: list[tuple[int, int]], requests: list[int]) -> AttentionGroup | None:
    if not requests:
        return None
    if len(requests) == len(spans):
        return AttentionGroup(slice(None), batch.block_tables, batch.cu_seqlens_q, batch.seq_lens)
    device = batch.block_tables.device
    cu_seqlens_q = [0]
    for request in requests:
        begin, end = spans[request]
        cu_seqlens_q.append(cu_seqlens_q[-1] + end - begin)
    return AttentionGroup(
        rows=torch.cat([torch.arange(*spans[request], device=device) for request in requests]),
        block_tables=batch.block_tables[torch.tensor(requests, device=device)],
        cu_seqlens_q=tuple(cu_seqlens_q),
        seq_lens=tuple(batch.seq_lens[request] for request in requests),
    )


class LatentAttention:
    """One layer's attention."""

    def __init__(
        self, config: ModelConfig, weights: AttentionWeights, device: torch.device, dtype: torch.dtype,
        dense: Precision = "bf16",
    ) -> None:  # fmt: skip
        """`dense`: to what the projections are rounded."""

        def projection(weight: Weight) -> Tensor:
            return to_precision(weight, device, dtype, dense)

        self._num_heads = config.num_attention_heads
        self._eps = config.rms_norm_eps
        self._a_widths = [config.q_lora_rank, KV_LORA_RANK, QK_ROPE_HEAD_DIM]
        # Both projections read the same input: one matrix product.
        self._a_proj = column_major(
            torch.cat((projection(weights.q_a_proj), projection(weights.kv_a_proj)))
        )
        self._q_a_norm = weights.q_a_norm.to(device, dtype)
        self._kv_a_norm = weights.kv_a_norm.to(device, dtype)
        self._q_b_proj = column_major(projection(weights.q_b_proj))
        self._w_uk, self._w_uv = split_kv_b_proj(projection(weights.kv_b_proj), self._num_heads)
        self._o_proj = column_major(projection(weights.o_proj))

    def forward(
        self, x: Tensor, batch: ForwardBatch, plan: AttentionPlan, terms: PositionTerms, pool: Tensor
    ) -> Tensor:
        """x [T, H], normalised -> [T, H], without the residual.

        pool [num_blocks, block_size, 320] is this layer's cache; the tokens' latents are written to it first.
        """
        q_a, c_kv, k_rope = torch.split(F.linear(x, self._a_proj), self._a_widths, dim=-1)
        latent_write.latent_write(
            pool,
            batch.slot_mapping,
            rms_norm.rms_norm(c_kv, self._kv_a_norm, self._eps),
            rope.rope(k_rope, terms.rotation),
        )
        q = F.linear(rms_norm.rms_norm(q_a, self._q_a_norm, self._eps), self._q_b_proj)
        q_nope, q_rope = torch.split(q.view(len(x), self._num_heads, -1), _QK_WIDTHS, dim=-1)
        q = torch.cat((q_nope, rope.rope(q_rope, terms.rotation)), dim=-1) * terms.query_scale[:, None, None]
        out = q.new_empty(len(x), self._num_heads, V_HEAD_DIM)
        if plan.absorbed:
            out[plan.absorbed.rows] = self._attend_absorbed(q[plan.absorbed.rows], plan.absorbed, pool)
        if plan.expanded:
            out[plan.expanded.rows] = self._attend_expanded(q[plan.expanded.rows], plan.expanded, pool)
        return F.linear(out.flatten(1), self._o_proj)

    def _attend_absorbed(self, q: Tensor, group: AttentionGroup, pool: Tensor) -> Tensor:
        """q [T, N, 128] -> [T, N, 128]: w_uk moves to the query's side, w_uv behind the sum."""
        q_nope, q_rope = torch.split(q, _QK_WIDTHS, dim=-1)
        q_latent = torch.bmm(q_nope.transpose(0, 1), self._w_uk).transpose(0, 1)
        values = mla_decode.mla_decode(
            torch.cat((q_latent, q_rope), dim=-1),
            pool,
            group.block_tables,
            group.cu_seqlens_q,
            group.seq_lens,
            SOFTMAX_SCALE,
            KV_LORA_RANK,
        )
        return torch.bmm(values.transpose(0, 1), self._w_uv.mT).transpose(0, 1)

    def _attend_expanded(self, q: Tensor, group: AttentionGroup, pool: Tensor) -> Tensor:
        """q [T, N, 128] -> [T, N, 128]."""
        return mla_prefill.mla_prefill(
            q,
            pool,
            group.block_tables,
            group.cu_seqlens_q,
            group.seq_lens,
            self._w_uk,
            self._w_uv,
            SOFTMAX_SCALE,
        )


def split_kv_b_proj(kv_b_proj: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    """[N·192, 256] -> w_uk [N, 64, 256], w_uv [N, 128, 256]: each head's k_nope rows, then its v rows."""
    w_uk, w_uv = torch.split(
        kv_b_proj.view(num_heads, -1, KV_LORA_RANK), [QK_NOPE_HEAD_DIM, V_HEAD_DIM], dim=1
    )
    return w_uk.contiguous(), w_uv.contiguous()
