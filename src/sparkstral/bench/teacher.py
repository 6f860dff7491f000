"""What a model makes of given texts under several settings at once, position by position, full vocabulary.

Owns the pass: the reference model of which one layer at a time is dense, so that 119B parameters fit wherever the
stored ones do; the layer's experts are decoded once and every setting's tokens go through them. Teacher-forced: each
position sees the text's own tokens. Long texts go in chunks against their cached latents, which is what the settings
of the cache are about. Must not know which texts or settings are worth it (precision).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.bench.loss import BLOCK_SIZE
from sparkstral.bench.loss_text import ScoredText
from sparkstral.bench.settings import Setting
from sparkstral.kernels import rms_norm
from sparkstral.kv_cache.layout import num_blocks_for
from sparkstral.model.config import ModelConfig
from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.model.linear import to_precision
from sparkstral.model.mla import AttentionPlan, LatentAttention
from sparkstral.model.moe import MixtureOfExperts
from sparkstral.model.rope import PositionTerms, RotaryEmbedding
from sparkstral.model.weights import LayerWeights, ModelWeights
from sparkstral.runner.forward_batch import build_forward_batch
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.types import ScheduledRequest

CHUNK_TOKENS = 2048  # of all texts together: what a step of the engine has by default
LOGITS_ROWS = 256  # at once: 128 MiB in float32 with the real vocabulary, and some of these


@dataclass(frozen=True, slots=True)
class Positions:
    """One setting beside the first, at every position that has a next token: [P] each, texts in their order."""

    loss: Tensor  # nats, of the text's next token
    divergence: Tensor  # KL(first || this), nats
    agrees: Tensor  # bool: the likeliest token is the same
    likeliest: Tensor  # token ids


class TeacherForced:
    """For one checkpoint on one device. `on_layer` hears (layers done, all)."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, device: torch.device, dtype: torch.dtype,
        on_layer: Callable[[int, int], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        self._config, self._weights, self._device, self._dtype = config, weights, device, dtype
        self._on_layer = on_layer

    @torch.inference_mode()
    def run(self, texts: Sequence[ScoredText], settings: Sequence[Setting]) -> list[Positions]:
        """What each setting makes of the texts."""
        batches = self._batches(texts)
        streams = self._streams(batches, settings)
        targets = torch.cat([torch.tensor([*text.token_ids[1:], -1]) for text in texts])
        kept = (targets >= 0).nonzero().flatten()
        heads = {
            dense: to_precision(self._weights.lm_head, self._device, self._dtype, dense)
            for dense in {setting.dense for setting in settings}
        }
        found: list[list[tuple[Tensor, ...]]] = [[] for _ in settings]
        for rows in torch.split(kept, LOGITS_ROWS):
            wanted = targets[rows].to(self._device)[:, None]
            first: Tensor | None = None
            for stream, setting, parts in zip(streams, settings, found, strict=True):
                logprobs = F.linear(stream[rows.to(self._device)], heads[setting.dense]).float().log_softmax(-1)
                first = logprobs if first is None else first
                likeliest = logprobs.argmax(-1)
                parts.append(
                    (
                        -logprobs.gather(1, wanted)[:, 0].cpu(),
                        (first.exp() * (first - logprobs)).sum(-1).clamp(min=0).cpu(),
                        (likeliest == first.argmax(-1)).cpu(),
                        likeliest.cpu(),
                    )
                )
        return [Positions(*(torch.cat(column) for column in zip(*parts, strict=True))) for parts in found]

    def _batches(self, texts: Sequence[ScoredText]) -> list[ForwardBatch]:
        """All tokens in their order, CHUNK_TOKENS at a time; each text has its own blocks."""
        batches, chunk, first_block = [], [], 0
        left = CHUNK_TOKENS
        for index, text in enumerate(texts):
            blocks = num_blocks_for(len(text.token_ids), BLOCK_SIZE)
            block_ids = tuple(range(first_block, first_block + blocks))
            first_block += blocks
            begin = 0
            while begin < len(text.token_ids):
                end = min(begin + left, len(text.token_ids))
                held = block_ids[: num_blocks_for(end, BLOCK_SIZE)]
                chunk.append(ScheduledRequest(str(index), text.token_ids[begin:end], begin, held, samples=False))
                left -= end - begin
                begin = end
                if left == 0:
                    batches.append(build_forward_batch(chunk, BLOCK_SIZE, self._device))
                    chunk, left = [], CHUNK_TOKENS
        if chunk:
            batches.append(build_forward_batch(chunk, BLOCK_SIZE, self._device))
        self._num_blocks = first_block
        return batches

    def _streams(self, batches: Sequence[ForwardBatch], settings: Sequence[Setting]) -> list[Tensor]:
        """The last norm's output of all tokens, for each setting [T, H]."""
        config, weights, device, dtype = self._config, self._weights, self._device, self._dtype
        rotary = RotaryEmbedding(config, device, dtype)
        prepared = [(AttentionPlan.of(batch), rotary.at(batch.positions)) for batch in batches]
        embedded = weights.embed_tokens.to(device)[torch.cat([batch.input_ids for batch in batches])].to(dtype)
        streams = [embedded.clone() for _ in settings]
        for index, layer in enumerate(weights.layers):
            experts = MixtureOfExperts(layer, device, dtype)
            for setting, stream in zip(settings, streams, strict=True):
                self._through(layer, experts, setting, stream, batches, prepared)
            self._on_layer(index + 1, len(weights.layers))
        norm = weights.norm.to(device, dtype)
        return [rms_norm.rms_norm(stream, norm, config.rms_norm_eps) for stream in streams]

    def _through(
        self, layer: LayerWeights, experts: MixtureOfExperts, setting: Setting, stream: Tensor,
        batches: Sequence[ForwardBatch], prepared: Sequence[tuple[AttentionPlan, PositionTerms]],
    ) -> None:  # fmt: skip
        """All chunks through one layer; stream [T, H] changes in place."""
        eps, device, dtype = self._config.rms_norm_eps, self._device, self._dtype
        # The norm's output is all that queries are made of, so it can carry the softmax scale.
        scaled = replace(layer.attention, q_a_norm=layer.attention.q_a_norm.float() * setting.scale_ratio)
        attention = LatentAttention(self._config, scaled, device, dtype, setting.dense)
        attention_norm, ffn_norm = layer.attention_norm.to(device, dtype), layer.ffn_norm.to(device, dtype)
        pool = allocate_latent_pool(1, self._num_blocks, BLOCK_SIZE, device, dtype, setting.kv)[0]
        begin = 0
        for batch, (plan, terms) in zip(batches, prepared, strict=True):
            x = stream[begin : begin + len(batch.input_ids)]
            x += attention.forward(rms_norm.rms_norm(x, attention_norm, eps), batch, plan, terms, pool)
            x += experts.forward(rms_norm.rms_norm(x, ffn_norm, eps))
            begin += len(x)
