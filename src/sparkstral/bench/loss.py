"""Which softmax scale the weights were trained with: the loss of a fixed text, teacher-forced, at both candidates.

Model makers' files say 128^-0.5 (no YaRN mscale²); transformers 5.9 and newer multiply by 2.2058 (docs/model.md). On
a GPU the text goes through the kernels, as served. Elsewhere the layers are those of the reference model, decoded one
at a time, so that 119B parameters fit wherever the stored ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.bench.loss_text import ScoredText
from sparkstral.bench.settings import MSCALE_SQUARED
from sparkstral.checkpoint.load import load
from sparkstral.checkpoint.stream import LoadProgress
from sparkstral.kernels import rms_norm
from sparkstral.kernels.select import select_kernels
from sparkstral.model.config import ModelConfig
from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.model.linear import to_dense
from sparkstral.model.mistral4 import DecoderLayer
from sparkstral.model.mla import AttentionPlan
from sparkstral.model.rope import RotaryEmbedding
from sparkstral.model.weights import LayerWeights, ModelWeights
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.runner.model_runner import ModelRunner
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.types import ModelRunnerOutput, NewRequest, SamplingParams, ScheduledRequest, SchedulerOutput

if TYPE_CHECKING:
    from sparkstral.kernels.configs import KernelConfigs

PLAIN, SCALED = "128^-0.5", "2.2058 x 128^-0.5"
MIN_ERRORS = 4.0  # standard errors by which the shares of tokens must differ to tell the scales apart
BLOCK_SIZE = 64
TEXTS_AT_ONCE = 16  # through the kernels


class Runner(Protocol):
    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput: ...


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


def loss_of(runner: Runner, texts: Sequence[ScoredText], at_once: int) -> Tensor:
    """Negative log-likelihood, in nats, of each token that counts, of all texts [C]: log probabilities of prompts, as
    clients get them, `at_once` texts a step."""
    losses: list[float] = []
    for begin in range(0, len(texts), at_once):
        part = texts[begin : begin + at_once]
        step = _step_of(part)
        told = runner.execute(step).prompt_logprobs
        for text, request in zip(part, step.scheduled, strict=True):
            # Entry i is of the token of index i + 1.
            losses += [-told[request.request_id][at - 1].logprob for at in text.counted]
        runner.execute(SchedulerOutput(0, (), (), tuple(request.request_id for request in step.scheduled)))
    return torch.tensor(losses)


def _step_of(texts: Sequence[ScoredText]) -> SchedulerOutput:
    """Each text's first tokens as one prompt, in blocks of its own behind the first."""
    params = SamplingParams(max_tokens=1, temperature=0.0, stop_token_ids=(), num_prompt_logprobs=0)
    rows, new = [], []
    first_block = 1
    for index, text in enumerate(texts):
        end = first_block + -(-len(text.token_ids) // BLOCK_SIZE)
        rows.append(ScheduledRequest(str(index), text.token_ids, 0, tuple(range(first_block, end)), samples=False))
        new.append(NewRequest(str(index), params, None, (), text.token_ids))
        first_block = end
    return SchedulerOutput(0, tuple(rows), tuple(new))


def num_blocks_for(texts: Sequence[ScoredText]) -> int:
    return 1 + sum(-(-len(text.token_ids) // BLOCK_SIZE) for text in texts)


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


def plain_losses(
    config: ModelConfig,
    weights: ModelWeights,
    texts: Sequence[ScoredText],
    ratio: float,
    device: torch.device,
    on_layer: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """Through the reference model, all texts in one step."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    pool = allocate_latent_pool(1, num_blocks_for(texts), BLOCK_SIZE, device, dtype)
    model = LayerByLayer(config, weights, device, dtype, ratio, on_layer)
    return loss_of(ModelRunner(model, pool, 0, _no_grammar), texts, len(texts))


class FastLosses:
    """Through the Triton kernels, as served. Takes the memory of the experts in `weights` over."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        texts: Sequence[ScoredText],
        kernels: KernelConfigs,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        from sparkstral.model.fast_mistral4 import FastLimits, FastMistral4  # brings Triton
        from sparkstral.runner.fast_runner import FastRunner

        lengths = sorted((len(text.token_ids) for text in texts), reverse=True)
        most = sum(lengths[:TEXTS_AT_ONCE])
        limits = FastLimits(
            max_num_seqs=TEXTS_AT_ONCE,
            max_positions=lengths[0] + 1,
            prefill_keys=max(most, 128),
            prefill_tokens=most,
            moe_tokens=most,
        )
        self._texts = texts
        self._model = FastMistral4(config, weights, kernels, limits, device, dtype)
        pool = allocate_latent_pool(
            config.num_hidden_layers, num_blocks_for(texts), BLOCK_SIZE, device, dtype
        )
        self._runner = FastRunner(self._model, pool, 0, _no_grammar, config.vocab_size)

    def at(self, ratio: float) -> Tensor:
        self._model.scale_softmax(ratio)
        try:
            return loss_of(self._runner, self._texts, TEXTS_AT_ONCE)
        finally:
            self._model.scale_softmax(1 / ratio)


def _no_grammar(_spec: object) -> CompiledGrammar:
    raise LookupError("texts have no grammar")


def compare_scales(
    folder: Path, texts: Sequence[ScoredText], device: torch.device, report: Callable[[str], None]
) -> dict[str, Any]:
    """Load the checkpoint and judge it, through the kernels where the device has them; `report` hears what is being
    done. Raises CheckpointError, and ConfigError for a device that the kernels do not serve."""
    kernels = select_kernels("auto", device)

    def show(progress: LoadProgress) -> None:
        report(f"reading weights, {20 * progress.bytes_done // max(1, progress.bytes_total) * 5} %")

    config, weights = load(folder, device, show)
    losses = []
    fast = None if kernels is None else FastLosses(config, weights, texts, kernels, device, torch.bfloat16)
    for name, ratio in ((PLAIN, 1.0), (SCALED, MSCALE_SQUARED)):

        def on_layer(index: int, name: str = name) -> None:
            report(f"softmax scale {name}: layer {index + 1} of {config.num_hidden_layers}")

        if fast is None:
            losses.append(plain_losses(config, weights, texts, ratio, device, on_layer))
        else:
            report(f"softmax scale {name}")
            losses.append(fast.at(ratio))
    through = "reference" if fast is None else "kernels"
    return {"checkpoint": folder.name, "through": through, **judge(*losses)}
