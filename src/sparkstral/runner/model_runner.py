"""One step of the engine on the device: from `SchedulerOutput` to `ModelRunnerOutput`.

Owns the model, its latent pool and what each request's sampling remembers; must not know queues, blocks'
owners or text. The scheduler says what to compute; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sparkstral.errors import SparkstralError
from sparkstral.model.forward_batch import ForwardBatch
from sparkstral.runner.encoder_cache import EncoderCache
from sparkstral.runner.forward_batch import build_forward_batch
from sparkstral.runner.proposing import propose, tell_proposer
from sparkstral.runner.request_state import (
    RequestState,
    RequestStates,
    drafts_of,
    grammar_failure,
    sampling_rows,
)
from sparkstral.sampling.logprobs import logprobs_of
from sparkstral.sampling.processors import History, process
from sparkstral.sampling.sampler import SamplingRow, sample
from sparkstral.speculative.proposer import Proposer, StepContext
from sparkstral.speculative.rejection import accepted
from sparkstral.structured.matcher import CompiledGrammar, GrammarError
from sparkstral.types import (
    Failure,
    GrammarSpec,
    ModelRunnerOutput,
    ScheduledRequest,
    SchedulerOutput,
    TokenLogprob,
)


class DeviceError(SparkstralError):
    """The device does not work any more for this process; only a new process can use it again."""


class LanguageModel(Protocol):
    def forward(self, batch: ForwardBatch, latent_pool: Tensor) -> Tensor:
        """[L, V] float32 logits of `batch.logits_rows`; the batch's latents are written into the pool."""


class ModelRunner:
    """Used by the engine thread alone."""

    def __init__(
        self,
        model: LanguageModel,
        latent_pool: Tensor,
        base_seed: int,
        compiled_grammar: Callable[[GrammarSpec], CompiledGrammar],
        proposer: Proposer | None = None,
        encoder: EncoderCache | None = None,
    ) -> None:
        """`latent_pool` (runner/latent_pool) is on the model's device; for the others see
        `RequestStates`."""
        self._model = model
        self._latent_pool = latent_pool
        self._block_size_tokens = latent_pool.shape[2]
        self._states = RequestStates(base_seed, compiled_grammar)
        self._proposer = proposer
        self._encoder = encoder

    @torch.inference_mode()
    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Carry out `step`. A row that fails is in the output's failures; raises `DeviceError` if the device
        is lost, and what the model raises otherwise (then no request's state has changed)."""
        failures = self._states.begin_step(step)
        tell_proposer(self._proposer, step)
        if not step.scheduled:
            return ModelRunnerOutput({})
        explained = {request.request_id for request in step.scheduled if self._wants_prompt(request)}
        try:
            if self._encoder is not None:
                self._encoder.begin_step(step)
            batch = build_forward_batch(
                step.scheduled, self._block_size_tokens, self._latent_pool.device, explained, self._encoder
            )
            logits = self._model.forward(batch, self._latent_pool)
            prompt_logprobs, logits = self._explain_prompts(logits, step.scheduled, explained)
            result = self._sample(
                logits, [request for request in step.scheduled if request.samples], failures, prompt_logprobs
            )
            return propose(self._proposer, StepContext(step.scheduled, result.sampled), result)
        except torch.AcceleratorError as error:
            raise DeviceError(f"The device reports: {error}") from error

    def _wants_prompt(self, request: ScheduledRequest) -> bool:
        state = self._states.get(request.request_id)
        return (
            state is not None
            and state.params.num_prompt_logprobs is not None
            and request.num_computed_tokens + 1 < len(state.prompt_token_ids)
        )

    def _explain_prompts(
        self, logits: Tensor, scheduled: Sequence[ScheduledRequest], explained: Container[str]
    ) -> tuple[dict[str, tuple[TokenLogprob, ...]], Tensor]:
        """logits [L, V] -> what they say of the prompts' next tokens, and the rows that tokens are chosen from."""
        if not explained:
            return {}, logits
        told: dict[str, tuple[TokenLogprob, ...]] = {}
        kept: list[int] = []
        row = 0
        for request in scheduled:
            num_sampling = 1 + request.num_drafts if request.samples else 0
            num_rows = num_sampling
            if request.request_id in explained:
                num_rows = len(request.token_ids)
                state = self._states[request.request_id]
                first = request.num_computed_tokens + 1
                next_ids = state.prompt_token_ids[first : first + num_rows]
                num_top = state.params.num_prompt_logprobs or 0
                told[request.request_id] = logprobs_of(logits[row : row + len(next_ids)], next_ids, num_top)
            row += num_rows
            kept += range(row - num_sampling, row)
        return told, logits[kept]

    def _sample(
        self,
        logits: Tensor,
        requests: list[ScheduledRequest],
        failures: dict[str, Failure],
        prompt_logprobs: dict[str, tuple[TokenLogprob, ...]],
    ) -> ModelRunnerOutput:
        """logits [L, V], for each of `requests` a row, and one more for each of its drafts. Those in `failures` get no
        token; new ones are added."""
        sampled: dict[str, tuple[int, ...]] = {}
        logprobs: dict[str, tuple[TokenLogprob, ...]] = {}
        rows: list[SamplingRow] = []
        histories: list[History] = []
        kept: list[int] = []
        spans: list[tuple[ScheduledRequest, RequestState, int, int]] = []  # whose choices are which of `rows`
        begin = 0
        # The masks are made while the device still computes: nothing has waited for the logits so far.
        for request in requests:
            first, begin = begin, begin + 1 + request.num_drafts
            if request.request_id in failures:
                continue
            state = self._states[request.request_id]
            try:
                made = sampling_rows(state, drafts_of(request))
            except GrammarError as error:
                failures[request.request_id] = grammar_failure(error)
                continue
            spans.append((request, state, len(rows), len(rows) + len(made)))
            kept += range(first, first + len(made))
            for row, history in made:
                rows.append(row)
                histories.append(history)
        if not rows:
            return ModelRunnerOutput(sampled, failures, prompt_logprobs=prompt_logprobs)
        if len(kept) != len(logits):
            logits = logits[kept]
        results = sample(process(logits, histories), rows)
        for request, state, first, end in spans:
            request_id = request.request_id
            token_ids = accepted(drafts_of(request), results[first:end])
            if isinstance(token_ids, Failure):
                failures[request_id] = token_ids
                continue
            if state.params.num_logprobs is not None:
                logprobs[request_id] = logprobs_of(
                    logits[first : first + len(token_ids)], token_ids, state.params.num_logprobs
                )
            try:
                state.append(token_ids)
                sampled[request_id] = token_ids
            except GrammarError as error:
                failures[request_id] = grammar_failure(error)
        return ModelRunnerOutput(sampled, failures, logprobs, prompt_logprobs)
