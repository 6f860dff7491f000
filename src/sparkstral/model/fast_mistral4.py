"""Mistral Small 4's text network through the Triton kernels: token ids to logits, weights as they are stored.

Owns the order of the launches, twelve a layer in a decode step, and which product is whose: few rows go through
kernels/bf16_linear or fp8_linear, whose parts the next kernel adds; many through PyTorch's product (cuBLAS). Its plain
form, and what it is measured against, is model/mistral4. The residual stream has the model's dtype and is changed in
place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels.bf16_linear.triton_kernel import bf16_linear
from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.embed.triton_kernel import embed
from sparkstral.kernels.fp8_linear import triton_kernel as fp8_linear
from sparkstral.kernels.fp8_quantize import Fp8Rows
from sparkstral.kernels.latent_write.triton_kernel import write_latents
from sparkstral.kernels.mla_decode import triton_kernel as mla_decode
from sparkstral.kernels.mla_prefill import triton_kernel as mla_prefill
from sparkstral.kernels.moe_experts.triton_kernel import MoeWorkspace, moe_block
from sparkstral.kernels.rms_norm.triton_kernel import add_rms_norm
from sparkstral.kernels.rope.triton_kernel import turn_queries
from sparkstral.model.config import (
    KV_LORA_RANK,
    NUM_EXPERTS_PER_TOK,
    ROUTED_SCALING_FACTOR,
    SOFTMAX_SCALE,
    V_HEAD_DIM,
    ModelConfig,
)
from sparkstral.model.fast_batch import FastBatch
from sparkstral.model.fast_weights import FastLayerWeights, Matrix, as_held, memory_of
from sparkstral.model.linear import to_dense
from sparkstral.model.rope import RotaryEmbedding
from sparkstral.model.weights import ModelWeights
from sparkstral.types import Precision

MAX_LINEAR_ROWS = 32  # more go through cuBLAS
DECODED_AT_ONCE = 1 << 24  # numbers of a weight in FP8 for cuBLAS: 32 MiB, a projection, or an eighth of the head


@dataclass(frozen=True, slots=True)
class FastLimits:
    """What the buffers between launches are made for."""

    max_num_seqs: int  # rows of a decode step
    max_positions: int  # that a token may have
    prefill_keys: int  # that are expanded at once
    prefill_tokens: int  # of a step's tokens in prompts
    moe_tokens: int  # of one pass through the experts; longer batches take several


@dataclass(frozen=True, slots=True)
class FastWorkspace:
    """Buffers of all layers, which follow each other on one stream."""

    decode: mla_decode.DecodeWorkspace
    prefill: mla_prefill.PrefillWorkspace
    moe: MoeWorkspace

    @classmethod
    def allocate(
        cls, kernels: KernelConfigs, config: ModelConfig, limits: FastLimits, dtype: torch.dtype, device: torch.device
    ) -> FastWorkspace:
        heads = config.num_attention_heads
        return cls(
            mla_decode.allocate_workspace(kernels.decode, limits.max_num_seqs, 1, heads, KV_LORA_RANK, device),
            mla_prefill.allocate_workspace(limits.prefill_keys, limits.prefill_tokens, heads, dtype, device),
            MoeWorkspace.allocate(
                kernels.moe,
                limits.moe_tokens,
                config.hidden_size,
                config.moe_intermediate_size,
                config.n_routed_experts,
                NUM_EXPERTS_PER_TOK,
                device,
                dtype,
            ),
        )


@dataclass(frozen=True, slots=True)
class _Terms:
    """What the tokens' positions do, for all layers; of each group of a batch, its rows' scales in memory of their own
    (a slice's address would not be aligned, and Triton would compile for it)."""

    rotation: Tensor  # [T, 32] complex64
    absorbed_scales: list[Tensor]
    expanded_scales: Tensor


class FastMistral4:
    """The network on one device. It owns its weights and workspaces; what a pass needs is in its arguments."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        kernels: KernelConfigs,
        limits: FastLimits,
        device: torch.device,
        dtype: torch.dtype,
        dense: Precision = "bf16",
    ) -> None:
        """Takes over the memory of the experts in `weights`, whose codes it reorders in place. `dtype` is bfloat16; the
        interpreter's products are right in float32 alone. `dense`: how the attention's projections and the head are
        held."""
        self.config = config
        self.device = device
        self.dtype = dtype
        self.kernels = kernels
        self.limits = limits
        self._embed_tokens = weights.embed_tokens.to(device, dtype)
        self._layers = [
            FastLayerWeights.of(layer, config.num_attention_heads, device, dtype, dense) for layer in weights.layers
        ]
        self._norm = weights.norm.to(device, dtype)
        self._lm_head = as_held(to_dense(weights.lm_head, device, dtype), dense)
        positions = torch.arange(limits.max_positions, device=device)
        terms = RotaryEmbedding(config, device, dtype).at(positions)
        self._rotations, self._query_scales = terms.rotation, terms.query_scale
        self._workspace = FastWorkspace.allocate(kernels, config, limits, dtype, device)

    def forward(self, batch: FastBatch, latent_pool: Tensor) -> Tensor:
        """Logits [L, vocab_size] float32 of the rows batch.logits_rows; for the rest see `hidden`. A batch of one
        absorbed group can be captured in a graph."""
        return self.logits(self.hidden(batch, latent_pool))

    @torch.inference_mode()
    def hidden(self, batch: FastBatch, latent_pool: Tensor) -> Tensor:
        """[L, H], what logits are made of, of the rows batch.logits_rows; the latents are written to latent_pool
        (runner/latent_pool)."""
        kernels = self.kernels
        stream, rotation, query_scale = embed(
            batch.input_ids, batch.sources, batch.previous, batch.positions,
            self._embed_tokens, self._rotations, self._query_scales, config=kernels.embed,
        )  # fmt: skip
        if batch.images is not None:
            stream.index_copy_(0, batch.images.tokens, batch.images.embeddings)
        terms = self._terms(batch, rotation, query_scale)
        rows = batch.logits_rows
        for layer, pool in zip(self._layers, latent_pool, strict=True):
            is_last = layer is self._layers[-1]
            q_a = self._write_latents(layer, stream, batch, terms, pool)
            if is_last and rows is not None and len(rows) == 0:
                return stream.new_empty(0, stream.shape[1])
            values = self._attend(layer, q_a, batch, terms, pool)
            if is_last and rows is not None:  # nobody reads the others from here on
                values, stream = values[rows], stream[rows]
            normed = self._add_norm(stream, self._product(values, layer.o_proj), layer.ffn_norm)
            moe_block(
                normed, layer.router, layer.gate_up, layer.down, stream, ROUTED_SCALING_FACTOR, stream,
                workspace=self._workspace.moe, config=kernels.moe, pdl=kernels.pdl, input_scales=layer.input_scales,
            )  # fmt: skip
        return self._add_norm(stream, None, self._norm)

    def scale_softmax(self, ratio: float) -> None:
        """Multiply the softmax's scale, by way of the norm whose output is all that queries are made of. For
        `sparkstral verify`; serving has no need of it."""
        for layer in self._layers:
            layer.q_a_norm.copy_(layer.q_a_norm.float() * ratio)

    def _write_latents(
        self, layer: FastLayerWeights, stream: Tensor, batch: FastBatch, terms: _Terms, pool: Tensor
    ) -> Tensor:
        """stream [T, H] -> q_a [T, Q], normalised; the tokens' latents are in the pool."""
        kernels = self.kernels
        return write_latents(
            self._product(self._add_norm(stream, None, layer.attention_norm), layer.a_proj),
            layer.q_a_norm, layer.kv_a_norm, terms.rotation, batch.slots, self.config.rms_norm_eps, pool,
            config=kernels.latent_write, pdl=kernels.pdl,
        )  # fmt: skip

    def _attend(self, layer: FastLayerWeights, q_a: Tensor, batch: FastBatch, terms: _Terms, pool: Tensor) -> Tensor:
        """q_a [T, Q] -> each head's value [T, N * 128]."""
        kernels, workspace = self.kernels, self._workspace
        is_whole = batch.expanded is None and len(batch.absorbed) == 1
        # Rows of parts cannot be cut out, so a batch with several forms of attention takes one whole product.
        q = self._product(q_a, layer.q_b_proj) if is_whole else self._whole(q_a, layer.q_b_proj).unsqueeze(0)
        num_heads = self.config.num_attention_heads
        out = q_a.new_empty(len(q_a), num_heads, V_HEAD_DIM)
        for group, scale in zip(batch.absorbed, terms.absorbed_scales, strict=True):
            latents = mla_decode.absorb(
                q if is_whole else q[:, group.rows], terms.rotation[group.rows], scale, layer.w_uk,
                config=kernels.decode, pdl=kernels.pdl, next_weight=memory_of(layer.o_proj),
            )  # fmt: skip
            mla_decode.mla_decode(
                latents, pool, group.block_tables, group.cu_seqlens_q, group.seq_lens, SOFTMAX_SCALE, layer.w_uv,
                max_query_len=group.max_query_len, workspace=workspace.decode, config=kernels.decode,
                pdl=kernels.pdl, out=out[group.rows],
            )  # fmt: skip
        if batch.expanded is not None:
            rows = batch.expanded.rows
            queries = q[0, rows].view(-1, num_heads, q.shape[-1] // num_heads)
            turn_queries(
                queries, terms.rotation[rows], terms.expanded_scales, config=kernels.rope, pdl=kernels.pdl
            )
            mla_prefill.mla_prefill(
                queries, pool, batch.expanded.passes, layer.kv_b_proj, SOFTMAX_SCALE,
                workspace=workspace.prefill, config=kernels.prefill, out=out[rows],
            )  # fmt: skip
        return out.flatten(1)

    def _terms(self, batch: FastBatch, rotation: Tensor, query_scale: Tensor) -> _Terms:
        def of(rows: slice) -> Tensor:
            scales = query_scale[rows]
            return scales if len(scales) == len(query_scale) else scales.clone()

        return _Terms(
            rotation,
            [of(group.rows) for group in batch.absorbed],
            of(slice(0) if batch.expanded is None else batch.expanded.rows),
        )

    def _add_norm(self, stream: Tensor, parts: Tensor | None, weight: Tensor) -> Tensor:
        """stream += the sum of parts, in place -> its norm."""
        kernels = self.kernels
        return add_rms_norm(
            stream, parts, weight, self.config.rms_norm_eps, config=kernels.rms_norm, pdl=kernels.pdl
        )

    def _product(self, x: Tensor, weight: Matrix) -> Tensor:
        """x [M, K], weight [N, K] -> parts [S, M, N]."""
        if len(x) > MAX_LINEAR_ROWS:
            return self._whole(x, weight).unsqueeze(0)
        return self._parts(x, weight, self.dtype)

    @torch.inference_mode()
    def logits(self, x: Tensor) -> Tensor:
        """x [L, H], of `hidden` -> [L, V] float32."""
        if not len(x):
            return torch.empty(0, self.config.vocab_size, dtype=torch.float32, device=self.device)
        if len(x) > MAX_LINEAR_ROWS:
            return self._whole(x, self._lm_head).float()
        parts = self._parts(x, self._lm_head, torch.float32)
        return parts[0] if len(parts) == 1 else parts.sum(0)

    def _parts(self, x: Tensor, weight: Matrix, out_dtype: torch.dtype) -> Tensor:
        kernels = self.kernels
        if isinstance(weight, Tensor):
            return bf16_linear(x, weight, out_dtype, config=kernels.linear, pdl=kernels.pdl)
        return fp8_linear.fp8_linear(x, weight, out_dtype, config=kernels.linear_fp8, pdl=kernels.pdl)

    def _whole(self, x: Tensor, weight: Matrix) -> Tensor:
        """x [M, K], weight [N, K] -> [M, N] by PyTorch's product."""
        if isinstance(weight, Tensor):
            return F.linear(x, weight)
        num_rows, depth = weight.codes.shape
        step = max(1, DECODED_AT_ONCE // depth)
        if step >= num_rows:
            return F.linear(x, fp8_linear.dequantize(weight, x.new_empty(num_rows, depth)))
        out, decoded = x.new_empty(len(x), num_rows), x.new_empty(step, depth)
        for begin in range(0, num_rows, step):
            rows = slice(begin, min(begin + step, num_rows))
            part = Fp8Rows(weight.codes[rows], weight.scale[rows])
            out[:, rows] = F.linear(x, fp8_linear.dequantize(part, decoded[: len(part.scale)]))
        return out
