"""Requests in, steps out, results back in.

Owns the life of every request from `add` to its one terminal output; must not know tensors, text or clocks.
There is no prefill phase and no decode phase: in each step a request's num_computed_tokens catches up with
its tokens, and with drafts behind them, of which those that stand become tokens.

Order of a call sequence: `schedule` and `update` alternate; between them `schedule_ahead` may plan the step
after the one in flight, which `update` then takes in as the next. `add` and `abort` may come at any time, in
the same thread. A request that ends while steps with it are in flight is told so at once, and its blocks are
given back in the `update` of the last of them, for the device may be writing to them until then.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, replace

from sparkstral.errors import ConfigError
from sparkstral.kv_cache.layout import num_blocks_for
from sparkstral.kv_cache.manager import KvCacheManager
from sparkstral.scheduler import policy
from sparkstral.scheduler.budgets import SchedulerConfig, share_prefill
from sparkstral.scheduler.drafting import Controller, Drafting
from sparkstral.scheduler.encoder_cache import EncoderCache, image_refusal
from sparkstral.scheduler.pacing import Pacer, lane_of
from sparkstral.scheduler.request import Request, RequestStatus
from sparkstral.types import (
    MAX_BIASED_TOKENS,
    MAX_TOP_LOGPROBS,
    UNSEEN,
    EngineStats,
    Failure,
    FinishReason,
    GenerationRequest,
    ModelRunnerOutput,
    NewRequest,
    ScheduledRequest,
    SchedulerOutput,
    TokenOutput,
)

_Share = tuple[Request, int, tuple[int, ...]]  # tokens of a request in a step, and drafts behind them


def _place(request: Request) -> int:
    return request.place


def _context(requests: list[Request]) -> int:
    return max(request.num_computed_tokens for request in requests)


@dataclass(slots=True)
class _Flight:
    """A step that was planned and not taken in."""

    step: int
    requests: list[Request]  # row by row
    rows: tuple[ScheduledRequest, ...]
    is_assumed: bool = False  # each of its requests counts as computed, with an UNSEEN token behind
    was_held_back: bool = False  # it was not planned ahead because of drafts


class Scheduler:
    """All requests of one engine. Raises ConfigError if the pool does not hold one request of
    max_model_len."""

    def __init__(
        self, config: SchedulerConfig, cache: KvCacheManager, controller: Controller | None = None
    ) -> None:
        """`controller` sets how many drafts are verified; without one there are none."""
        if cache.capacity_tokens < config.max_model_len:
            raise ConfigError(
                f"The KV pool holds {cache.capacity_tokens:,} tokens and --max-model-len is "
                f"{config.max_model_len:,}: one request would not fit. "
                "Give the pool more memory or lower --max-model-len."
            )
        self._config = config
        self._cache = cache
        self._encoder = None if config.encoder is None else EncoderCache(config.encoder)
        self._requests: dict[str, Request] = {}  # those without a terminal output
        self._waiting: list[Request] = []  # by place
        self._running: list[Request] = []  # by place
        self._in_flight: deque[_Flight] = deque()  # two at most, the second planned ahead
        self._forgotten_ids: list[str] = []  # finished, and the runner was not told
        self._step = 0
        self._num_arrivals = 0
        self._num_prompt_tokens = 0
        self._num_cached_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_preemptions = 0
        self._num_sick_requests = 0
        self._pacer = Pacer(config.max_slowdown)
        self._last_step_s = 0.0
        self._drafting = Drafting(controller, for_changed_logits=config.drafts_for_changed_logits)
        self._wall_s: float | None = None  # of the step that is about to be taken in
        self._is_held_back = False  # the next step: it could have been planned ahead but for drafts

    @property
    def has_work(self) -> bool:
        """Whether `schedule` will find something to compute."""
        return bool(self._requests)

    def add(self, request: GenerationRequest) -> TokenOutput | None:
        """Take a request over, or refuse it: then what comes back is its terminal output.

        A refusal for a request_id that is in use is meant for the caller who sent it again; the request that
        has the id already goes on.
        """
        refusal = self._refusal(request)
        if refusal is not None:
            return TokenOutput(
                request.request_id,
                (),
                failure=Failure("invalid_request", refusal),
                num_prompt_tokens=len(request.prompt_token_ids),
            )
        num_prompt_tokens = len(request.prompt_token_ids)
        added = Request(
            request_id=request.request_id,
            place=policy.place(self._num_arrivals, request.priority),
            sampling=request.sampling,
            grammar=request.grammar,
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=num_prompt_tokens,
            max_total_tokens=min(num_prompt_tokens + request.sampling.max_tokens, self._config.max_model_len),
            table=self._cache.new_table(request.cache_salt, request.images),
            images=request.images,
        )
        self._num_arrivals += 1
        self._requests[added.request_id] = added
        insort(self._waiting, added, key=_place)
        return None

    def abort(self, request_id: str) -> TokenOutput | None:
        """End a request now; its terminal output, or None if it has had one or was never there."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        if request.status is RequestStatus.WAITING:
            self._waiting.remove(request)
        else:
            self._running.remove(request)
        return self._end(request, (), finish_reason=FinishReason.ABORTED)

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: running decodes first, then chunks of prompts, each in order of their places.

        The runner forgets `finished_request_ids` before it learns `new_requests`: an id may stand in both.
        """
        if self._in_flight:
            raise RuntimeError(f"step {self._step} is in flight; schedule and update alternate")
        preempted = self._grow_running()
        if self._waiting and not preempted:
            self._admit_waiting()

        rows: list[ScheduledRequest] = []
        in_flight: list[Request] = []
        new_requests: list[NewRequest] = []
        plan = self._up_to_images(self._divide_budget())
        num_sampling = sum(request.num_remaining_tokens == num_tokens for request, num_tokens, _ in plan)
        for request, num_tokens, drafts in plan:
            begin = request.num_computed_tokens
            samples = num_tokens == request.num_remaining_tokens
            rows.append(
                ScheduledRequest(
                    request.request_id,
                    (*request.token_ids[begin : begin + num_tokens], *drafts),
                    begin,
                    request.table.as_tuple(),
                    samples,
                    len(drafts),
                    self._drafting.wanted(request, num_sampling) if samples else 0,
                    request.images_between(begin, begin + num_tokens) if request.images else (),
                )
            )
            in_flight.append(request)
            if not request.is_known_to_runner:
                request.is_known_to_runner = True
                reads_prompt = request.prompt_is_read or self._drafting.is_on
                new_requests.append(
                    NewRequest(
                        request.request_id,
                        request.sampling,
                        request.grammar,
                        request.output_token_ids,
                        request.prompt_token_ids if reads_prompt else (),
                    )
                )
        return self._launch(rows, in_flight, new_requests)

    def schedule_ahead(self) -> SchedulerOutput | None:
        """Plan the step after the only one in flight, before its tokens are known: one UNSEEN token of each
        request that goes on, whatever it will be. A request that its token ends computes one token in vain.

        None where the next plan depends on what comes of this step, or on more than its lengths: a prompt that is not
        through, a request that could be admitted, a grammar, drafts, or too few blocks; then `update` and `schedule`
        follow."""
        if len(self._in_flight) != 1:
            return None
        if self._waiting and len(self._running) < self._config.max_num_seqs:
            return None
        (flight,) = self._in_flight
        alive = [request for request in flight.requests if request.status is not RequestStatus.FINISHED]
        if len(alive) != len(self._running) or not all(row.samples for row in flight.rows):
            return None
        if any(request.grammar is not None for request in alive):
            return None
        # How many drafts stand is not known before; and what is guessed to come twice from now may be verified then.
        if any(row.num_drafts for row in flight.rows):
            return None
        if any(self._drafting.choose(alive, self._draft_limit)):
            self._is_held_back = True
            return None
        going_on = [request for request in self._running if len(request.token_ids) + 1 < request.max_total_tokens]
        block_size, cache = self._cache.block_size_tokens, self._cache
        num_missing = sum(
            max(0, num_blocks_for(len(request.token_ids) + 1, block_size) - len(request.table.block_ids))
            for request in going_on
        )
        if not going_on or num_missing > cache.num_free_blocks:
            return None
        for request in alive:
            request.num_computed_tokens = len(request.token_ids)
            request.token_ids.append(UNSEEN)
        flight.is_assumed = True
        rows = []
        for request in going_on:
            cache.grow(request.table, len(request.token_ids))
            rows.append(
                ScheduledRequest(
                    request.request_id,
                    (UNSEEN,),
                    request.num_computed_tokens,
                    request.table.as_tuple(),
                    samples=True,
                    num_wanted_drafts=self._drafting.wanted(request, len(going_on)),
                )
            )
        return self._launch(rows, going_on, [], is_ahead=True)

    def _launch(
        self,
        rows: list[ScheduledRequest],
        requests: list[Request],
        new_requests: list[NewRequest],
        is_ahead: bool = False,
    ) -> SchedulerOutput:
        self._step += 1
        self._in_flight.append(_Flight(self._step, requests, tuple(rows), was_held_back=self._is_held_back))
        self._is_held_back = False
        finished_request_ids = tuple(self._forgotten_ids)
        self._forgotten_ids.clear()
        images, dropped = self._encoder.take_step() if self._encoder and not is_ahead else ((), ())
        return SchedulerOutput(
            self._step, tuple(rows), tuple(new_requests), finished_request_ids, images, dropped
        )

    def update(self, output: SchedulerOutput, result: ModelRunnerOutput) -> list[TokenOutput]:
        """Take in what the step gave: tokens, ends, failures of single rows. `output` is the oldest step in
        flight."""
        if not self._in_flight or output.step != self._in_flight[0].step:
            raise ValueError(f"step {output.step} is not in flight, or not the oldest")
        flight = self._in_flight.popleft()
        outputs: list[TokenOutput] = []
        cache = self._cache
        sampled, failures = result.sampled, result.failures
        if self._encoder is not None and output.images and failures:
            self._encoder.forget(output.images)
        if self._wall_s is not None:
            self._drafting.took(output, result, self._wall_s, flight.was_held_back)
            self._wall_s = None
        for request, row in zip(flight.requests, output.scheduled, strict=True):
            request_id = request.request_id
            if request.status is RequestStatus.FINISHED:
                if not self._is_in_flight(request):
                    cache.release(request.table)
                continue
            if flight.is_assumed:
                request.token_ids.pop()
            if request_id in failures:
                outputs.append(self._fail(request, failures[request_id]))
                continue
            num_computed_tokens = row.num_computed_tokens + len(row.token_ids) - row.num_drafts
            self._commit(request, num_computed_tokens)
            if request_id in result.prompt_logprobs:
                request.prompt_logprobs[row.num_computed_tokens :] = result.prompt_logprobs[request_id]
            if not row.samples:
                continue
            new_token_ids = sampled.get(request_id)
            if not new_token_ids:
                message = f"Step {output.step} gave no token for this request: a defect of the engine."
                outputs.append(self._fail(request, Failure("internal", message)))
                continue
            if row.num_drafts:
                self._drafting.verified(request, row.num_drafts, len(new_token_ids) - 1)
            request.draft_token_ids = result.drafts.get(request_id, ())
            prompt_logprobs = request.take_prompt_logprobs()
            new_token_ids, finish_reason = request.append(new_token_ids)
            self._num_generated_tokens += len(new_token_ids)
            if len(new_token_ids) > 1:  # the drafts that stand are tokens, and computed; the last new one is not
                self._commit(request, num_computed_tokens + len(new_token_ids) - 1)
            if finish_reason is None:
                token_output = TokenOutput(
                    request_id, new_token_ids, None, None, request.num_prompt_tokens, request.num_cached_tokens
                )
            else:
                self._running.remove(request)
                token_output = self._end(request, new_token_ids, finish_reason=finish_reason)
            if request.sampling.wants_logprobs:
                logprobs = result.logprobs.get(request_id, ())[: len(new_token_ids)]
                token_output = replace(token_output, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
            outputs.append(token_output)
        return outputs

    def took(self, output: SchedulerOutput, seconds: float, wall_s: float) -> None:
        """How long the device was busy with a step, and how long after the one before it was over, or after work came:
        the next ones are planned by it. `update` of this step follows."""
        self._wall_s = wall_s
        num_decoding = num_prompt_tokens = context = 0
        for row in output.scheduled:
            if row.samples and len(row.token_ids) == 1 + row.num_drafts:
                num_decoding += len(row.token_ids)
            else:
                num_prompt_tokens += len(row.token_ids)
                context = max(context, row.num_computed_tokens)
        if not output.images:  # what the encoder took tells nothing of tokens
            self._pacer.took(num_decoding, num_prompt_tokens, context, seconds)
        self._last_step_s = seconds

    def forget_unused_blocks(self) -> int:
        """Prefixes that no request holds are not found any more; how many blocks that were."""
        return self._cache.forget_unused()

    def stats(self) -> EngineStats:
        return EngineStats(
            step=self._step,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_free_blocks=self._cache.num_free_blocks,
            num_cached_blocks=self._cache.num_cached_blocks,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_prompt_tokens=self._num_cached_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
            num_preemptions=self._num_preemptions,
            num_sick_requests=self._num_sick_requests,
            last_step_s=self._last_step_s,
            num_draft_steps=self._drafting.num_steps,
            num_drafts=self._drafting.num_drafts,
            num_draft_tokens=self._drafting.num_draft_tokens,
            num_accepted_tokens=self._drafting.num_accepted_tokens,
        )

    # ---- planning ------------------------------------------------------------------------------------------

    def _grow_running(self) -> bool:
        """Give each running request the block that its next token needs, the first first; whether any gave
        way."""
        running, cache = self._running, self._cache
        preempted = False
        position = 0
        while position < len(running):
            request = running[position]
            while not cache.grow(request.table, len(request.token_ids)):
                preempted = True
                victim = policy.victim(running)
                self._preempt(victim)
                if victim is request:
                    break
            position += 1
        return preempted

    def _preempt(self, request: Request) -> None:
        """Back to waiting, at its place. Its full blocks may still be there when it comes
        back."""
        self._running.remove(request)
        self._cache.release(request.table)
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = 0
        request.draft_token_ids = ()
        request.num_preemptions += 1
        request.is_known_to_runner = False
        self._num_preemptions += 1
        insort(self._waiting, request, key=_place)

    def _admit_waiting(self) -> None:
        """Admit in order of their places while there are places and blocks; see policy for who may pass whom."""
        blocked: list[Request] = []
        for request in self._waiting[: policy.MAX_EXAMINED]:
            if len(self._running) >= self._config.max_num_seqs:
                break
            if self._admit(request):
                for passed in blocked:
                    passed.num_times_overtaken += 1
            else:
                blocked.append(request)
            if blocked and not all(policy.may_be_overtaken(request) for request in blocked):
                break

    def _admit(self, request: Request) -> bool:
        cache = self._cache
        if request.num_releases_at_refusal == cache.num_releases:
            return False
        num_cached_tokens = cache.admit(
            request.table, request.token_ids, policy.num_reserved_blocks(self._running)
        )
        if num_cached_tokens is None:
            request.num_releases_at_refusal = cache.num_releases
            return False
        self._waiting.remove(request)
        insort(self._running, request, key=_place)
        request.status = RequestStatus.RUNNING
        if request.num_preemptions == 0:
            self._num_prompt_tokens += request.num_prompt_tokens
        self._skip_to(request, num_cached_tokens)
        return True

    def _skip_to(self, request: Request, num_computed_tokens: int) -> None:
        """Tokens that the cache holds already need no computing; a preempted request's own do not count as
        cached."""
        if request.num_preemptions == 0:
            prompt_end = request.num_prompt_tokens
            num_skipped = min(num_computed_tokens, prompt_end) - min(request.num_computed_tokens, prompt_end)
            request.num_cached_tokens += num_skipped
            self._num_cached_prompt_tokens += num_skipped
        request.num_computed_tokens = num_computed_tokens

    def _divide_budget(self) -> list[_Share]:
        """How many tokens of which request this step computes, and which drafts behind them."""
        decoding: list[Request] = []
        catching_up: list[Request] = []
        for request in self._running:
            if request.num_remaining_tokens == 1:
                decoding.append(request)
            else:
                num_computed_tokens = self._cache.skip_cached(
                    request.table, request.token_ids, request.num_computed_tokens
                )
                self._skip_to(request, num_computed_tokens)
                catching_up.append(request)
        chosen = self._drafting.choose(decoding, self._draft_limit)
        plan = [
            (request, 1, drafts and self._with_room(request, drafts))
            for request, drafts in zip(decoding, chosen, strict=True)
        ]
        if not catching_up:
            return plan
        num_decoding = sum(1 + len(drafts) for _, _, drafts in plan)
        if self._pacer.holds_back(num_decoding):
            catching_up = self._take_turns(catching_up)
        budget = self._pacer.prompt_tokens(
            num_decoding, _context(catching_up), self._config.max_num_batched_tokens - num_decoding
        )
        shares = share_prefill(budget, [request.num_remaining_tokens for request in catching_up])
        plan += [(request, share, ()) for request, share in zip(catching_up, shares, strict=True) if share]
        return plan

    def _up_to_images(self, plan: list[_Share]) -> list[_Share]:
        """The plan, cut where a request's next image can neither be held nor be encoded in this step. The first
        request that needs one always gets it, so that there is progress."""
        encoder = self._encoder
        if encoder is None:
            return plan
        encoder.begin_step()
        cut = []
        for request, num_tokens, drafts in plan:
            begin = request.num_computed_tokens
            end = encoder.reach(request.images, begin, begin + num_tokens) if request.images else begin + num_tokens
            if end > begin:
                cut.append((request, end - begin, drafts if end == begin + num_tokens else ()))
        return cut

    @property
    def _draft_limit(self) -> int:
        """Of a step's drafts: a token of each running request has its place before any draft."""
        config = self._config
        return min(config.max_num_batched_tokens, config.max_sampled_rows) - len(self._running)

    def _with_room(self, request: Request, drafts: tuple[int, ...]) -> tuple[int, ...]:
        """The drafts that the request's blocks hold; blocks are taken for them only while there are enough for all."""
        cache, num_tokens = self._cache, len(request.token_ids)
        if cache.num_free_blocks > policy.num_reserved_blocks(self._running) + len(drafts):
            cache.grow(request.table, num_tokens + len(drafts))
        return drafts[: len(request.table.block_ids) * cache.block_size_tokens - num_tokens]

    def _commit(self, request: Request, num_computed_tokens: int) -> None:
        """The first `num_computed_tokens` of its tokens are in the cache."""
        request.num_computed_tokens = num_computed_tokens
        if num_computed_tokens // self._cache.block_size_tokens > request.table.num_full_blocks:
            self._cache.commit(request.table, request.token_ids, num_computed_tokens)

    def _take_turns(self, catching_up: list[Request]) -> list[Request]:
        """Every other step is the oldest's; in the others those that need least come first, with such as have no
        longer context. So a short prompt's tokens are not as few as those of a long one, which cost far more."""
        if self._step % 2 == 0:
            return catching_up[:1]
        shortest_first = sorted(catching_up, key=lambda request: request.num_remaining_tokens)
        lane = lane_of(shortest_first[0].num_computed_tokens)
        return [request for request in shortest_first if lane_of(request.num_computed_tokens) <= lane]

    # ---- ends ----------------------------------------------------------------------------------------------

    def _fail(self, request: Request, failure: Failure) -> TokenOutput:
        """End one running request by a failure; what it computed with sick numbers is not to be reused."""
        self._running.remove(request)
        if failure.code == "numerics":
            self._num_sick_requests += 1
            self._cache.discard(request.table)
        return self._end(request, (), failure=failure)

    def _end(
        self,
        request: Request,
        new_token_ids: tuple[int, ...],
        finish_reason: FinishReason | None = None,
        failure: Failure | None = None,
    ) -> TokenOutput:
        """The one place where a request gets its terminal output. Takes it out of everything but the
        queues."""
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]
        self._forgotten_ids.append(request.request_id)
        if not self._is_in_flight(request):
            self._cache.release(request.table)
        return TokenOutput(
            request.request_id,
            new_token_ids,
            finish_reason,
            failure,
            request.num_prompt_tokens,
            request.num_cached_tokens,
        )

    def _is_in_flight(self, request: Request) -> bool:
        return any(request in flight.requests for flight in self._in_flight)

    def _refusal(self, request: GenerationRequest) -> str | None:
        """Why this request can never be served, or None."""
        token_ids, max_model_len = request.prompt_token_ids, self._config.max_model_len
        if request.request_id in self._requests:
            return f"A request with the id {request.request_id!r} is being served; ids must be unique."
        if not token_ids:
            return "The prompt has no tokens; at least 1 is needed."
        if len(token_ids) >= max_model_len:
            return (
                f"Prompt has {len(token_ids):,} tokens; this server accepts {max_model_len - 1:,} "
                f"and 1 of output (--max-model-len {max_model_len:,}). "
                "Shorten it, or restart with a larger --max-model-len."
            )
        if request.sampling.max_tokens < 1:
            return f"max_tokens is {request.sampling.max_tokens}; it must be at least 1."
        sampling = request.sampling
        if len(sampling.logit_bias) > MAX_BIASED_TOKENS:
            return f"logit_bias names {len(sampling.logit_bias):,} tokens; at most {MAX_BIASED_TOKENS:,} are served."
        num_top = max(sampling.num_logprobs or 0, sampling.num_prompt_logprobs or 0)
        if num_top > MAX_TOP_LOGPROBS:
            return f"Log probabilities of {num_top} tokens are asked for; at most {MAX_TOP_LOGPROBS} are told."
        if min(token_ids) < 0 or max(token_ids) >= self._config.vocab_size:
            return f"The prompt holds token ids outside 0 to {self._config.vocab_size - 1:,}."
        return image_refusal(request, self._config.encoder)
