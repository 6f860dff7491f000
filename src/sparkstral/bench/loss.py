"""Which softmax scale the weights were trained with: the loss of a fixed text, teacher-forced, at both candidates.

Model makers' files say 128^-0.5 (no YaRN mscale²); transformers 5.9 and newer multiply by 2.2058 (docs/model.md). The
layers are those of the reference model, decoded one at a time, so that 119B parameters fit wherever the stored ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.bench.loss_text import ScoredText
from sparkstral.bench.settings import MSCALE_SQUARED
from sparkstral.checkpoint.load import load
from sparkstral.checkpoint.stream import LoadProgress
from sparkstral.kernels import rms_norm
from sparkstral.model.config import LATENT_WIDTH, ModelConfig
from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.model.linear import to_dense
from sparkstral.model.mistral4 import DecoderLayer
from sparkstral.model.mla import AttentionPlan
from sparkstral.model.rope import RotaryEmbedding
from sparkstral.model.weights import LayerWeights, ModelWeights

PLAIN, SCALED = "128^-0.5", "2.2058 x 128^-0.5"
MIN_ERRORS = 4.0  # standard errors by which the shares of tokens must differ to tell the scales apart
BLOCK_SIZE = 64


class Model(Protocol):
    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def forward(self, batch: ForwardBatch, latent_pool: Tensor) -> Tensor: ...


class LayerByLayer:
    """The reference model of which one layer at a time is dense: for a few passes."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, device: torch.device, dtype: torch.dtype, scale_ratio: float,
        on_layer: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`scale_ratio` multiplies the softmax scale: by way of the norm whose output is all that queries are made
        of. `on_layer` hears the number of each layer that is through."""
        self.config, self.device, self.dtype = config, device, dtype
        self._weights, self._ratio, self._on_layer = weights, scale_ratio, on_layer

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, latent_pool: Tensor) -> Tensor:
        """As Mistral4.forward; latent_pool [1, num_blocks, block_size, 320] serves every layer."""
        plan = AttentionPlan.of(batch)
        terms = RotaryEmbedding(self.config, self.device, self.dtype).at(batch.positions)
        x = self._weights.embed_tokens.to(self.device)[batch.input_ids].to(self.dtype)
        for index, weights in enumerate(self._weights.layers):
            layer = DecoderLayer(self.config, self._scaled(weights), self.device, self.dtype)
            x = layer.forward(x, batch, plan, terms, latent_pool[0])
            self._on_layer(index)
        x = rms_norm.rms_norm(
            x[batch.logits_rows], self._weights.norm.to(self.device, self.dtype), self.config.rms_norm_eps
        )
        return F.linear(x, to_dense(self._weights.lm_head, self.device, self.dtype)).float()

    def _scaled(self, layer: LayerWeights) -> LayerWeights:
        norm = layer.attention.q_a_norm.float() * self._ratio
        return replace(layer, attention=replace(layer.attention, q_a_norm=norm))


@torch.inference_mode()
def loss_of(model: Model, texts: Sequence[ScoredText], num_pools: int = 1) -> Tensor:
    """Negative log-likelihood, in nats, of each token that counts, of all texts [C], which are one batch.
    `num_pools`: layers of the cache."""
    device = model.device
    lengths = [len(text.token_ids) for text in texts]
    ends = list(accumulate(lengths, initial=0))
    first_blocks = list(accumulate((-(-length // BLOCK_SIZE) for length in lengths), initial=0))
    tables = torch.zeros(len(texts), max(b - a for a, b in pairwise(first_blocks)), dtype=torch.int64)
    for row, (begin, end) in enumerate(pairwise(first_blocks)):
        tables[row, : end - begin] = torch.arange(begin, end)
    positions = torch.cat([torch.arange(length) for length in lengths])
    first_slots = torch.cat([torch.full((n,), b * BLOCK_SIZE) for n, b in zip(lengths, first_blocks, strict=False)])
    counted = torch.tensor([end + at for text, end in zip(texts, ends, strict=False) for at in text.counted])
    input_ids = torch.tensor([token_id for text in texts for token_id in text.token_ids])
    batch = ForwardBatch(
        input_ids=input_ids.to(device),
        positions=positions.to(device),
        slot_mapping=(first_slots + positions).to(device),
        block_tables=tables.to(device),
        cu_seqlens_q=tuple(ends),
        seq_lens=tuple(lengths),
        logits_rows=(counted - 1).to(device),
    )
    pool = torch.zeros(num_pools, first_blocks[-1], BLOCK_SIZE, LATENT_WIDTH, dtype=model.dtype, device=device)
    logits = model.forward(batch, pool)
    return F.cross_entropy(logits, input_ids[counted].to(device), reduction="none")


def judge(plain: Tensor, scaled: Tensor) -> dict[str, Any]:
    """Which scale the weights agree with, if the text tells: losses [C] at 128^-0.5 and at 2.2058 times that.

    By a sign test: the scale at which most tokens are likelier. The mean loss of a text hangs on its few unlikely
    tokens, of which the demo's right answers have hardly any (its means differ by 1.7 standard errors, and 81 % of
    its tokens, 31 of them, are likelier at 128^-0.5; 2026-12-02)."""
    plain, scaled = plain.double(), scaled.double()
    num_for_plain, num_for_scaled = int((plain < scaled).sum()), int((scaled < plain).sum())
    num_tokens = num_for_plain + num_for_scaled
    errors = (num_for_plain - num_for_scaled) / max(1, num_tokens) ** 0.5
    found: dict[str, Any] = {
        "num_tokens": len(plain),
        "nats_a_token": {PLAIN: float(plain.mean()), SCALED: float(scaled.mean())},
        "likelier_tokens": {PLAIN: num_for_plain, SCALED: num_for_scaled},
        "standard_errors": errors,
        "agrees_with": None,
    }
    figures = (
        f"{num_for_plain:,} of {len(plain):,} tokens are likelier at {PLAIN}, {num_for_scaled:,} at {SCALED}; "
        f"mean loss {float(plain.mean()):.4f} and {float(scaled.mean()):.4f} nats"
    )
    if not (bool(plain.isfinite().all()) and bool(scaled.isfinite().all())):
        return {**found, "verdict": "failed", "sentence": f"A loss is not finite: {figures}."}
    if abs(errors) < MIN_ERRORS:
        sentence = f"The text does not tell the scales apart, as with random weights: {figures}."
        return {**found, "verdict": "undecided", "sentence": sentence}
    found["agrees_with"] = PLAIN if errors > 0 else SCALED
    sentence = f"The weights agree with a softmax scale of {found['agrees_with']}: {figures}."
    return {**found, "verdict": "ok" if errors > 0 else "failed", "sentence": sentence}


def compare_scales(
    folder: Path, texts: Sequence[ScoredText], device: torch.device, report: Callable[[str], None]
) -> dict[str, Any]:
    """Load the checkpoint and judge it; `report` hears what is being done. Raises CheckpointError."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def show(progress: LoadProgress) -> None:
        report(f"reading weights, {20 * progress.bytes_done // max(1, progress.bytes_total) * 5} %")

    config, weights = load(folder, device, show)
    losses = []
    for name, ratio in ((PLAIN, 1.0), (SCALED, MSCALE_SQUARED)):

        def on_layer(index: int, name: str = name) -> None:
            report(f"softmax scale {name}: layer {index + 1} of {config.num_hidden_layers}")

        losses.append(loss_of(LayerByLayer(config, weights, device, dtype, ratio, on_layer), texts).cpu())
    return {"checkpoint": folder.name, **judge(*losses)}
