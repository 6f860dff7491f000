"""Mistral Small 4's text network: token ids to logits.

Owns the order of the layers. Plain PyTorch through the references of kernels/, on any device: stored weights
are decoded to dense tensors when the model is built. The fast kernels of the GPU path will read packed
weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels import rms_norm
from sparkstral.model.config import ModelConfig
from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.model.linear import column_major, to_precision
from sparkstral.model.mla import AttentionPlan, LatentAttention
from sparkstral.model.moe import MixtureOfExperts
from sparkstral.model.rope import PositionTerms, RotaryEmbedding
from sparkstral.model.weights import LayerWeights, ModelWeights
from sparkstral.types import Precision


class DecoderLayer:
    """Attention, then experts, each on the normalised stream and added to it."""

    def __init__(
        self, config: ModelConfig, weights: LayerWeights, device: torch.device, dtype: torch.dtype,
        dense: Precision = "bf16",
    ) -> None:  # fmt: skip
        self._eps = config.rms_norm_eps
        self._attention_norm = weights.attention_norm.to(device, dtype)
        self._attention = LatentAttention(config, weights.attention, device, dtype, dense)
        self._ffn_norm = weights.ffn_norm.to(device, dtype)
        self._experts = MixtureOfExperts(weights, device, dtype)

    def forward(
        self, x: Tensor, batch: ForwardBatch, plan: AttentionPlan, terms: PositionTerms, pool: Tensor
    ) -> Tensor:
        """x [T, H] -> [T, H]; pool [num_blocks, block_size, 320] is this layer's cache, written in place."""
        normed = rms_norm.rms_norm(x, self._attention_norm, self._eps)
        x = x + self._attention.forward(normed, batch, plan, terms, pool)
        return x + self._experts.forward(rms_norm.rms_norm(x, self._ffn_norm, self._eps))


class Mistral4:
    """The network on one device. Holds parameters only: what a pass needs is in its arguments (law L3)."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, device: torch.device, dtype: torch.dtype,
        dense: Precision = "bf16",
    ) -> None:  # fmt: skip
        """Decode `weights` to dense `dtype` tensors on `device`; the residual stream has `dtype` too. `dense`: to what
        the attention's projections and the head are rounded first."""
        self.config = config
        self.device = device
        self.dtype = dtype
        self._embed_tokens = weights.embed_tokens.to(device, dtype)
        self._rotary = RotaryEmbedding(config, device, dtype)
        self._layers = [DecoderLayer(config, layer, device, dtype, dense) for layer in weights.layers]
        self._norm = weights.norm.to(device, dtype)
        self._lm_head = column_major(to_precision(weights.lm_head, device, dtype, dense))

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, latent_pool: Tensor) -> Tensor:
        """Logits [L, vocab_size] float32 of the rows batch.logits_rows; the latents are written to the pool.

        latent_pool [num_hidden_layers, num_blocks, block_size, 320]: for each token c_kv (256, normalised),
        then k_rope (64, rotated, interleaved pairs as kernels/rope lays them out). Any float dtype; that of
        the model is exact. Or in FP8 (kernels/latent_pool).
        """
        x = deque(self.hidden_states(batch, latent_pool), maxlen=1).pop()
        x = rms_norm.rms_norm(x[batch.logits_rows], self._norm, self.config.rms_norm_eps)
        return F.linear(x, self._lm_head).float()

    @torch.inference_mode()
    def hidden_states(self, batch: ForwardBatch, latent_pool: Tensor) -> Iterator[Tensor]:
        """The residual stream [T, H], as it enters the first layer and then as it leaves each."""
        plan = AttentionPlan.of(batch)
        terms = self._rotary.at(batch.positions)
        x = self._embed_tokens[batch.input_ids]
        if batch.images is not None:
            x[batch.images.tokens] = batch.images.embeddings
        yield x
        for layer, pool in zip(self._layers, latent_pool, strict=True):
            x = layer.forward(x, batch, plan, terms, pool)
            yield x
