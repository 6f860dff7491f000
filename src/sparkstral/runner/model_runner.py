"""One step of the engine on the device: from `SchedulerOutput` to `ModelRunnerOutput`.

Owns the model, its latent pool and what each request's sampling remembers; must not know queues, blocks'
owners or text. The scheduler says what to compute; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sparkstral.errors import SparkstralError
from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.runner.forward_batch import build_forward_batch
from sparkstral.sampling.sampler import SamplingRow, derive_seed, sample
from sparkstral.structured.matcher import CompiledGrammar, GrammarError, GrammarMatcher
from sparkstral.types import (
    Failure,
    GrammarSpec,
    ModelRunnerOutput,
    NewRequest,
    SamplingParams,
    ScheduledRequest,
    SchedulerOutput,
)


class DeviceError(SparkstralError):
    """The device does not work any more for this process; only a new process can use it again."""


class LanguageModel(Protocol):
    def forward(self, batch: ForwardBatch, latent_pool: Tensor) -> Tensor:
        """[L, V] float32 logits of `batch.logits_rows`; the batch's latents are written into the pool."""


@dataclass(slots=True)
class _RequestState:
    """What the next sample of a request depends on, beside its logits."""

    params: SamplingParams
    seed: int
    num_output_tokens: int
    matcher: GrammarMatcher | None


class ModelRunner:
    """Used by the engine thread alone."""

    def __init__(
        self,
        model: LanguageModel,
        latent_pool: Tensor,
        base_seed: int,
        compiled_grammar: Callable[[GrammarSpec], CompiledGrammar],
    ) -> None:
        """`latent_pool` is [num_layers, num_blocks, block_size, 320] on the model's device. A request without
        a seed gets one from `base_seed` and its id. `compiled_grammar` finds the grammar of a request that is
        scheduled."""
        self._model = model
        self._latent_pool = latent_pool
        self._block_size_tokens = latent_pool.shape[2]
        self._base_seed = base_seed
        self._compiled_grammar = compiled_grammar
        self._states: dict[str, _RequestState] = {}

    @torch.inference_mode()
    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Carry out `step`. A row that fails is in the output's failures; raises `DeviceError` if the device
        is lost, and what the model raises otherwise (then no request's state has changed)."""
        for request_id in step.finished_request_ids:
            self._states.pop(request_id, None)
        failures: dict[str, Failure] = {}
        for new_request in step.new_requests:
            try:
                self._states[new_request.request_id] = self._begin(new_request)
            except GrammarError as error:  # its own grammar refuses what it said before a preemption
                failures[new_request.request_id] = _grammar_failure(error)
        if not step.scheduled:
            return ModelRunnerOutput({})
        batch = build_forward_batch(step.scheduled, self._block_size_tokens, self._latent_pool.device)
        try:
            logits = self._model.forward(batch, self._latent_pool)
            return self._sample(logits, [request for request in step.scheduled if request.samples], failures)
        except torch.AcceleratorError as error:
            raise DeviceError(f"The device reports: {error}") from error

    def _begin(self, request: NewRequest) -> _RequestState:
        matcher = None
        if request.grammar is not None:
            matcher = self._compiled_grammar(request.grammar).matcher(request.output_token_ids)
        seed = request.sampling.seed
        if seed is None:
            seed = derive_seed(self._base_seed, request.request_id)
        return _RequestState(request.sampling, seed, len(request.output_token_ids), matcher)

    def _sample(
        self, logits: Tensor, requests: list[ScheduledRequest], failures: dict[str, Failure]
    ) -> ModelRunnerOutput:
        """logits [L, V], a row for each of `requests`. Those in `failures` get no token; new ones are added."""
        sampled: dict[str, tuple[int, ...]] = {}
        rows: list[SamplingRow] = []
        kept: list[int] = []
        # The masks are made while the device still computes: nothing has waited for the logits so far.
        for i, request in enumerate(requests):
            if request.request_id in failures:
                continue
            state = self._states[request.request_id]
            try:
                bitmask = None if state.matcher is None else state.matcher.bitmask()
            except GrammarError as error:
                failures[request.request_id] = _grammar_failure(error)
                continue
            rows.append(SamplingRow(state.params, state.seed, state.num_output_tokens, bitmask))
            kept.append(i)
        if not rows:
            return ModelRunnerOutput(sampled, failures)
        results = sample(logits if len(kept) == len(requests) else logits[kept], rows)
        for i, result in zip(kept, results, strict=True):
            request_id = requests[i].request_id
            if isinstance(result, Failure):
                failures[request_id] = result
                continue
            state = self._states[request_id]
            state.num_output_tokens += 1
            try:
                if state.matcher is not None and result not in state.params.stop_token_ids:
                    state.matcher.advance(result)
                sampled[request_id] = (result,)
            except GrammarError as error:
                failures[request_id] = _grammar_failure(error)
        return ModelRunnerOutput(sampled, failures)


def _grammar_failure(error: GrammarError) -> Failure:
    return Failure("grammar", f"The output could not be constrained any further: {error}")
