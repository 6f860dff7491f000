"""One step of the engine through the fast model: launched by `submit`, its tokens fetched by `collect`.

Owns the step's buffers, graphs and what each request's sampling remembers; must not know queues, blocks' owners or
text. Between the two calls nothing waits for the device, and the next step may be submitted before the last one is
collected: a token that the host has not seen yet (UNSEEN in the plan) is read on the device. Steps of one token a
request are CUDA graphs; steps with chunks of prompts or with drafts are launched kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.penalties import triton_kernel as penalties
from sparkstral.kernels.sampling import triton_kernel as sampling
from sparkstral.kernels.token_logprobs import triton_kernel as token_logprobs
from sparkstral.model.fast_batch import FastBatch
from sparkstral.model.fast_mistral4 import FastLimits
from sparkstral.runner.decode_graphs import DecodeGraphs
from sparkstral.runner.encoder_cache import EncoderCache
from sparkstral.runner.fast_batch import StepShape, build_fast_batch
from sparkstral.runner.logprobs import ROWS_AT_ONCE, ExplainedPrompt, LogprobRows, PromptLogprobs
from sparkstral.runner.model_runner import DeviceError
from sparkstral.runner.proposing import propose, tell_proposer
from sparkstral.runner.request_records import RequestRecords
from sparkstral.runner.request_state import RequestState, RequestStates, drafts_of, grammar_failure
from sparkstral.runner.step_buffers import StepBuffers
from sparkstral.sampling.logprobs import read_logprobs
from sparkstral.sampling.sampler import FAILURES, divisor, draw_uniform, fill_mask
from sparkstral.speculative.proposer import Proposer, StepContext
from sparkstral.speculative.rejection import accepted
from sparkstral.structured.matcher import CompiledGrammar, GrammarError
from sparkstral.types import (
    UNSEEN,
    Failure,
    GrammarSpec,
    ModelRunnerOutput,
    ScheduledRequest,
    SchedulerOutput,
    TokenLogprob,
)


class FastModel(Protocol):
    kernels: KernelConfigs
    limits: FastLimits

    def forward(self, batch: FastBatch, latent_pool: Tensor) -> Tensor: ...

    def hidden(self, batch: FastBatch, latent_pool: Tensor) -> Tensor: ...

    def logits(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class SampledRequest:
    """Whose tokens are in which rows: behind its last known token, and behind each of its drafts."""

    rows: tuple[int, ...]  # where the grammar does not allow a draft they end
    request_id: str
    state: RequestState
    drafts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step that was launched."""

    scheduled: tuple[ScheduledRequest, ...]
    sampled: tuple[SampledRequest, ...]  # those whose tokens are wanted
    failures: dict[str, Failure]  # of requests for which nothing is sampled
    turn: int | None  # of the buffers; None: nothing was launched
    prompts: tuple[ExplainedPrompt, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """What the device's memory did since the runner was ready; all 0 is the promise."""

    num_device_allocations: int
    reserved_bytes: int


class FastRunner:
    """Used by the engine thread alone."""

    def __init__(
        self,
        model: FastModel,
        latent_pool: Tensor,
        base_seed: int,
        compiled_grammar: Callable[[GrammarSpec], CompiledGrammar],
        vocab_size: int,
        proposer: Proposer | None = None,
        encoder: EncoderCache | None = None,
    ) -> None:
        """`latent_pool` (runner/latent_pool) is on the model's device."""
        limits, kernels = model.limits, model.kernels
        device, block_size = latent_pool.device, latent_pool.shape[2]
        self._model = model
        self.latent_pool = latent_pool
        self._kernels = kernels
        self._states = RequestStates(base_seed, compiled_grammar)
        self.encoder = encoder
        self._shape = StepShape(block_size, limits.max_num_seqs, kernels.prefill, limits.prefill_keys)
        self._buffers = StepBuffers(
            limits.max_num_seqs, -(-limits.max_positions // block_size), vocab_size, device
        )
        self._workspace = sampling.allocate_workspace(kernels.sampling, limits.max_num_seqs, vocab_size, device)
        self._records = RequestRecords(limits.max_num_seqs, vocab_size, device)
        self._logprobs = LogprobRows(limits.max_num_seqs, device)
        self._logprobs_workspace = token_logprobs.allocate_workspace(
            kernels.token_logprobs, max(limits.max_num_seqs, ROWS_AT_ONCE), vocab_size, device
        )
        self._prompt_logprobs = PromptLogprobs(
            limits.prefill_tokens, model.logits, self._logprobs_workspace, kernels, device
        )
        self.graphs = DecodeGraphs(model.forward, self._sample, latent_pool, self._buffers)
        self._proposer = proposer
        self._decode_rows: list[str] = []  # who had which row in the last decode step
        self._last_rows: dict[str, int] = {}  # where the last step's token of each request is
        self._at_ready: dict[str, int] | None = None
        self.graph_bytes = 0  # of PyTorch's allocator, for the graphs alone

    @property
    def device(self) -> torch.device:
        return self.latent_pool.device

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Carry out `step` and wait for it."""
        return self.collect(self.submit(step))

    @torch.inference_mode()
    def submit(self, step: SchedulerOutput) -> PendingStep:
        """Launch `step`; `MAX_IN_FLIGHT` steps may be uncollected at once. A request whose last token is UNSEEN must
        have sampled in the step before, and may have no grammar. Raises `DeviceError` if the device is lost."""
        failures = self._states.begin_step(step)
        tell_proposer(self._proposer, step)
        self._records.forget((*step.finished_request_ids, *(request.request_id for request in step.new_requests)))
        if not step.scheduled:
            return PendingStep((), (), failures, None)
        found = (
            ExplainedPrompt.of(i, request, self._states.get(request.request_id))
            for i, request in enumerate(step.scheduled)
        )
        prompts = tuple(prompt for prompt in found if prompt is not None)
        with _device_errors():
            if self.encoder is not None:
                self.encoder.begin_step(step)
            is_plain = all(len(request.token_ids) == 1 and not request.images for request in step.scheduled)
            if is_plain and not prompts:
                return self._submit_decode(step.scheduled, failures)
            return self._submit_prompts(step.scheduled, prompts, failures)

    def collect(self, pending: PendingStep) -> ModelRunnerOutput:
        """Wait for a step's tokens. A row that fails is in the output's failures."""
        sampled: dict[str, tuple[int, ...]] = {}
        logprobs: dict[str, tuple[TokenLogprob, ...]] = {}
        failures = dict(pending.failures)
        if pending.turn is None:
            return ModelRunnerOutput(sampled, failures)
        with _device_errors():
            token_ids, status = self._buffers.wait(pending.turn)
        rows_of_logprobs = self._logprobs.host(pending.turn)
        for each in pending.sampled:
            state = each.state
            choices = [FAILURES[status[row]] if status[row] else token_ids[row] for row in each.rows]
            taken = accepted(each.drafts, choices)
            if isinstance(taken, Failure):
                failures[each.request_id] = taken
                continue
            state.output_token_ids += taken
            state.num_output_tokens += len(taken) - 1  # the first was counted when the step was launched
            if (num_top := state.params.num_logprobs) is not None:
                logprobs[each.request_id] = tuple(
                    read_logprobs(rows_of_logprobs[row], token_id, num_top)
                    for row, token_id in zip(each.rows, taken, strict=False)
                )
            try:
                state.advance(taken)
                sampled[each.request_id] = taken
            except GrammarError as error:
                failures[each.request_id] = grammar_failure(error)
        explained = self._prompt_logprobs.read(pending.prompts, pending.turn)
        result = ModelRunnerOutput(sampled, failures, logprobs, explained)
        return propose(self._proposer, StepContext(pending.scheduled, sampled), result)

    def mark_ready(self) -> None:
        """From here on nothing is allocated on the device; see `growth_since_ready`."""
        self._at_ready = _memory_counters(self.device)

    def growth_since_ready(self) -> MemoryGrowth:
        """Device memory that was taken from the system since `mark_ready`."""
        if self._at_ready is None:
            raise RuntimeError("the runner is not ready yet")
        now = _memory_counters(self.device)
        return MemoryGrowth(*(now[name] - self._at_ready[name] for name in now))

    # ---- steps of one token a request ----------------------------------------------------------------------

    def _submit_decode(self, scheduled: Sequence[ScheduledRequest], failures: dict[str, Failure]) -> PendingStep:
        size = self.graphs.size_for(len(scheduled))
        arrays = self._buffers.begin()
        block_size = self._shape.block_size_tokens
        placed = list(zip(self._place(scheduled), scheduled, strict=True))
        for row, request in placed:
            position = request.num_computed_tokens
            (token_id,) = request.token_ids
            if token_id == UNSEEN:
                arrays["sources"][row] = self._last_rows[request.request_id]
            else:
                arrays["input_ids"][row] = token_id
            arrays["positions"][row] = position
            arrays["slots"][row] = request.block_ids[position // block_size] * block_size + position % block_size
            arrays["seq_lens"][row] = position + 1
            self._buffers.send_table(row, request.block_ids)
        sampling_rows = [((row,), request) for row, request in placed if request.samples]
        wanted = self._fill_parameters(arrays, sampling_rows, failures)
        with_more = self._fill_more(arrays, wanted)
        self._buffers.send_inputs()
        self.graphs.forward(size)
        wanted = self._send_masks(wanted, arrays["mask_rows"], failures)
        self.graphs.sample(size, with_more)
        return self._pending(scheduled, wanted, sampling_rows, failures, with_more)

    def _place(self, scheduled: Sequence[ScheduledRequest]) -> list[int]:
        """A row for each request: the one it had, if it is among the first, so that its block table need not move."""
        count = len(scheduled)
        wanted = {request.request_id for request in scheduled}
        rows: list[str | None] = [
            request_id if request_id in wanted else None for request_id in self._decode_rows[:count]
        ]
        rows += [None] * (count - len(rows))
        row_of = {request_id: row for row, request_id in enumerate(rows) if request_id is not None}
        free = iter([row for row, request_id in enumerate(rows) if request_id is None])
        for request in scheduled:
            if request.request_id not in row_of:
                row_of[request.request_id] = next(free)
        self._decode_rows = sorted(row_of, key=row_of.__getitem__)
        return [row_of[request.request_id] for request in scheduled]

    # ---- steps with chunks of prompts or drafts ----------------------------------------------------------------------

    def _submit_prompts(
        self,
        scheduled: Sequence[ScheduledRequest],
        prompts: tuple[ExplainedPrompt, ...],
        failures: dict[str, Failure],
    ) -> PendingStep:
        sources = {
            request.request_id: self._last_rows[request.request_id]
            for request in scheduled
            if request.token_ids[-1] == UNSEEN
        }
        batch, sampling_requests = build_fast_batch(
            scheduled, self._shape, self.device, sources, self._buffers.token_ids,
            {prompt.index: len(prompt.next_ids) for prompt in prompts}, self.encoder,
        )  # fmt: skip
        arrays = self._buffers.begin()
        rows_of: dict[int, tuple[int, ...]] = {}
        for row, index in enumerate(sampling_requests):
            rows_of[index] = (*rows_of.get(index, ()), row)
        sampling_rows = [(rows, scheduled[index]) for index, rows in rows_of.items()]
        wanted = self._fill_parameters(arrays, sampling_rows, failures)
        with_more = self._fill_more(arrays, wanted)
        self._buffers.send_inputs()
        hidden = self._model.hidden(batch, self.latent_pool)
        if sampling_rows:
            logits = self._model.logits(hidden[: len(sampling_requests)])
            wanted = self._send_masks(wanted, arrays["mask_rows"], failures)
            self._sample(logits, with_more)
        if prompts:
            self._prompt_logprobs.explain(hidden[len(sampling_requests) :], prompts, self._buffers.turn)
        return self._pending(scheduled, wanted, sampling_rows, failures, with_more, prompts)

    # ---- sampling ------------------------------------------------------------------------------------------

    def _fill_parameters(
        self,
        arrays: dict[str, NDArray[Any]],
        sampling_rows: Sequence[tuple[tuple[int, ...], ScheduledRequest]],
        failures: dict[str, Failure],
    ) -> list[SampledRequest]:
        """How each row chooses its token, as if the drafts before it were tokens; whose tokens are wanted."""
        wanted = []
        num_masks = 0
        for rows, request in sampling_rows:
            if request.request_id in failures:
                continue
            state = self._states[request.request_id]
            for position, row in enumerate(rows, start=state.num_output_tokens):
                params = state.params.at(position)
                if (temperature := divisor(params)) > 0:
                    arrays["temperature"][row] = temperature
                    arrays["top_k"][row] = params.top_k
                    arrays["top_p"][row] = params.top_p
                    arrays["min_p"][row] = params.min_p
                    arrays["uniform"][row] = draw_uniform(state.seed, position)
                if state.matcher is not None or params.banned_token_ids:
                    arrays["mask_rows"][row] = num_masks
                    num_masks += 1
            wanted.append(SampledRequest(rows, request.request_id, state, drafts_of(request)))
        return wanted

    def _fill_more(self, arrays: dict[str, NDArray[Any]], wanted: Sequence[SampledRequest]) -> bool:
        """What rows ask for beside the choice: changed logits, log probabilities. Whether any does."""
        with_more = False
        sampling_now = {each.request_id for each in wanted}
        for each in wanted:
            params = each.state.params
            if params.changes_logits:  # the record knows no drafts, so that there are none: SchedulerConfig
                (row,) = each.rows
                record = self._records.of(each.request_id, each.state, sampling_now)
                arrays["records"][row] = record.index
                arrays["num_biases"][row] = record.num_biases
                arrays["repetition"][row] = params.repetition_penalty
                arrays["presence"][row] = params.presence_penalty
                arrays["frequency"][row] = params.frequency_penalty
            if params.num_logprobs is not None:
                arrays["num_top"][list(each.rows)] = params.num_logprobs
            with_more |= params.changes_logits or params.num_logprobs is not None
        return with_more

    def _send_masks(
        self, wanted: list[SampledRequest], mask_rows: NDArray[Any], failures: dict[str, Failure]
    ) -> list[SampledRequest]:
        """The masks are made while the device computes; `wanted` without the requests whose grammar gives up, and
        without rows behind a draft that the grammar does not allow."""
        masks = self._buffers.masks()
        num_masks = 0
        kept = []
        for each in wanted:
            state, rows = each.state, each.rows
            allowed: Sequence[NDArray[np.int32] | None] = [None] * len(rows)
            if state.matcher is not None:
                try:
                    allowed = state.matcher.along(each.drafts)
                except GrammarError as error:
                    failures[each.request_id] = grammar_failure(error)
                    allowed = []
            for i, row in enumerate(rows):
                if mask_rows[row] < 0:
                    continue
                if i < len(allowed):
                    fill_mask(masks[num_masks], allowed[i], state.params.at(state.num_output_tokens + i))
                else:
                    masks[num_masks] = -1
                num_masks += 1
            if allowed:
                kept.append(replace(each, rows=rows[: len(allowed)]))
        if num_masks:
            self._buffers.send_masks(num_masks)
        return kept

    def _sample(self, logits: Tensor, with_more: bool) -> None:
        """logits [L, V]: the tokens of the first L rows, into the buffers; `with_more` as `_fill_more` says."""
        count, buffers, kernels = len(logits), self._buffers, self._kernels
        of_rows = {name: tensor[:count] for name, tensor in buffers.inputs.items()}
        token_ids, status = buffers.token_ids[:count], buffers.status[:count]
        table, records, chosen_from = self._records.table, of_rows["records"], logits
        if with_more:
            chosen_from = penalties.change_logits(
                logits, table, records, of_rows["repetition"], of_rows["presence"], of_rows["frequency"],
                of_rows["num_biases"], out=self._workspace.weights[:count], config=kernels.penalties, pdl=kernels.pdl,
            )  # fmt: skip
        sampling.sample(
            chosen_from, of_rows["temperature"], of_rows["top_k"], of_rows["top_p"], of_rows["min_p"],
            of_rows["uniform"], buffers.bitmask, of_rows["mask_rows"], workspace=self._workspace,
            config=kernels.sampling, pdl=kernels.pdl, out=(token_ids, status),
        )  # fmt: skip
        if with_more:
            penalties.note_tokens(table, records, token_ids, status, config=kernels.penalties, pdl=kernels.pdl)
            token_logprobs.token_logprobs(
                logits, token_ids, of_rows["num_top"], out=self._logprobs.device[:count],
                workspace=self._logprobs_workspace, config=kernels.token_logprobs, pdl=kernels.pdl,
            )  # fmt: skip

    def _pending(
        self,
        scheduled: Sequence[ScheduledRequest],
        wanted: Sequence[SampledRequest],
        sampling_rows: Sequence[tuple[tuple[int, ...], ScheduledRequest]],
        failures: dict[str, Failure],
        with_more: bool,
        prompts: tuple[ExplainedPrompt, ...] = (),
    ) -> PendingStep:
        """After all launches: a step that raised has changed no request's state."""
        if with_more:
            self._logprobs.fetch(self._buffers.turn, self._buffers.max_num_seqs)
        for each in wanted:
            each.state.num_output_tokens += 1
        # Of requests with drafts nobody reads a token on the device: which row it is in is not known yet.
        self._last_rows = {request.request_id: rows[0] for rows, request in sampling_rows}
        return PendingStep(tuple(scheduled), tuple(wanted), failures, self._buffers.fetch_outputs(), prompts)


def _memory_counters(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {"num_device_allocations": 0, "reserved_bytes": 0}
    stats = torch.cuda.memory_stats(device)
    return {
        "num_device_allocations": stats["num_device_alloc"],
        "reserved_bytes": stats["reserved_bytes.all.current"],
    }


@contextmanager
def _device_errors() -> Iterator[None]:
    """A lost device is told from errors that cost one step alone."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise DeviceError(f"The device reports: {error}") from error
    except RuntimeError as error:
        if "Triton Error [CUDA]" in str(error):
            raise DeviceError(f"The device reports: {error}") from error
        raise
