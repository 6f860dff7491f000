"""One request: rendered, checked, generated, parsed; and aborted when its reader leaves.

Owns the server's defaults for what the client left open, and the law that a request which has begun ends in
exactly one Finished or Failed. Must not know wire formats.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from sparkstral.chat.grammar import banned_token_ids, grammar_for
from sparkstral.chat.output_parser import OutputParser
from sparkstral.chat.render import RenderedPrompt, render
from sparkstral.chat.stop_strings import StopStrings
from sparkstral.chat.tokenizer import ChatTokenizer, Control
from sparkstral.config import ServerConfig
from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import require_ready
from sparkstral.errors import NotReadyError, PromptTooLongError, RequestError
from sparkstral.serving.admission import Admission
from sparkstral.serving.answers import numbered
from sparkstral.serving.trace import Observer, Trace
from sparkstral.types import (
    ChatRequest,
    Failed,
    Failure,
    Finished,
    FinishReason,
    GenerationRequest,
    OutputEvent,
    SamplingChoice,
    SamplingParams,
)

_ENDS = (Control.EOS.value,)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that was understood and fits. `repairs` names what was changed in its message list."""

    generation: GenerationRequest
    repairs: tuple[str, ...]
    prefilled_think: bool
    stop: tuple[str, ...]
    arrived_s: float  # time.monotonic


class Generator:
    """Serves chat requests from one engine."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: ChatTokenizer,
        config: ServerConfig,
        admission: Admission,
        observer: Observer,
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._config = config
        self._observer = observer
        self.admission = admission

    async def render(self, request: ChatRequest) -> RenderedPrompt:
        """What the model would see. Raises RequestError."""
        return await asyncio.to_thread(render, request, self._tokenizer)

    async def prepare(self, request: ChatRequest, request_id: str) -> PreparedRequest:
        """Render and check, in a slot of `admission` that the caller holds since it began to read the request.

        Raises RequestError (PromptTooLongError …) or NotReadyError.
        """
        require_ready(self._client.status())
        # In a thread: a long prompt takes seconds to encode, and other answers stream meanwhile.
        return await asyncio.to_thread(self._prepare, request, request_id, time.monotonic())

    def _prepare(self, request: ChatRequest, request_id: str, arrived_s: float) -> PreparedRequest:
        rendered = render(request, self._tokenizer)
        num_prompt_tokens = len(rendered.prompt.token_ids)
        max_model_len = self._client.info.max_model_len
        room_tokens = max_model_len - num_prompt_tokens
        if room_tokens < 1:
            raise PromptTooLongError(
                f"The prompt has {num_prompt_tokens:,} tokens; the maximum context length of this server is "
                f"{max_model_len:,} tokens for prompt and answer together. Shorten the messages, or restart "
                f"with --max-model-len {num_prompt_tokens + 1024} or more, if model and memory allow it.",
                "messages",
                num_prompt_tokens,
                max_model_len,
            )
        choice, config = request.sampling, self._config
        is_high = request.reasoning_effort == "high"
        default_temperature = config.default_temperature_high if is_high else config.default_temperature_none
        sampling = SamplingParams(
            max_tokens=room_tokens if choice.max_tokens is None else min(choice.max_tokens, room_tokens),
            temperature=default_temperature if choice.temperature is None else choice.temperature,
            stop_token_ids=_ENDS,
            top_p=1.0 if choice.top_p is None else choice.top_p,
            top_k=choice.top_k or 0,
            min_p=choice.min_p or 0.0,
            seed=choice.seed,
            banned_token_ids=banned_token_ids(request) + (_ENDS if choice.ignore_eos else ()),
            min_tokens=choice.min_tokens,
            logit_bias=choice.logit_bias,
            presence_penalty=choice.presence_penalty,
            frequency_penalty=choice.frequency_penalty,
            repetition_penalty=choice.repetition_penalty,
            num_logprobs=choice.num_logprobs,
        )
        self._check_logit_bias(choice)
        grammar = grammar_for(request, prefilled_think=rendered.prompt.prefilled_think)
        if grammar is not None and (choice.ignore_eos or choice.min_tokens):
            param = "ignore_eos" if choice.ignore_eos else "min_tokens"
            raise RequestError(
                f"`{param}` does not go with tools or a response_format: there the grammar says where an answer ends. "
                "Leave one of them out.",
                param,
            )
        generation = GenerationRequest(request_id, rendered.prompt.token_ids, sampling, grammar)
        return PreparedRequest(generation, rendered.repairs, rendered.prompt.prefilled_think, choice.stop, arrived_s)

    def _check_logit_bias(self, choice: SamplingChoice) -> None:
        for token_id, _ in choice.logit_bias:
            if not 0 <= token_id < self._tokenizer.vocab_size:
                raise RequestError(
                    f"`logit_bias` names token {token_id}; this model's are 0 to {self._tokenizer.vocab_size - 1:,}.",
                    "logit_bias",
                )

    async def run_all(
        self, request: PreparedRequest, number: int = 1
    ) -> AsyncGenerator[tuple[int, OutputEvent], None]:
        """`number` answers to one request, side by side, each event with its answer's number; otherwise as `run`. A
        seed of the client's counts up."""
        has_begun = False
        with self.admission.slot(number):
            runs = [self._traced(_variant(request, i) if i else request) for i in range(number)]
            async with aclosing(numbered(runs)) as events:
                try:
                    async for event in events:
                        has_begun = True
                        yield event
                except NotReadyError as error:  # the engine took some of the answers and not the others
                    if not has_begun:
                        raise
                    yield 0, Failed(Failure("engine_dead", str(error)))

    async def run(self, request: PreparedRequest) -> AsyncGenerator[OutputEvent, None]:
        """The answer's events as they come, the last of them Finished or Failed; takes a slot for itself.

        Raises OverloadedError or NotReadyError before the first event, and nothing after it. Closing it
        early, or cancelling its reader, aborts the request in the engine.
        """
        with self.admission.slot():
            async with aclosing(self._traced(request)) as events:
                async for event in events:
                    yield event

    async def _traced(self, request: PreparedRequest) -> AsyncGenerator[OutputEvent, None]:
        generation = request.generation
        trace = Trace(
            generation.request_id, len(generation.prompt_token_ids), request.arrived_s, self._observer
        )
        with trace:
            async with aclosing(self._answer(request, trace)) as events:
                async for event in events:
                    match event:
                        case Finished(reason):
                            trace.outcome = reason
                        case Failed(failure):
                            trace.outcome = failure.code
                    yield event

    async def _answer(self, request: PreparedRequest, trace: Trace) -> AsyncGenerator[OutputEvent, None]:
        parser = OutputParser(self._tokenizer, prefilled_think=request.prefilled_think)
        stop = StopStrings(request.stop)
        try:
            async with aclosing(self._client.generate(request.generation)) as outputs:
                async for output in outputs:
                    trace.num_cached_tokens = max(trace.num_cached_tokens, output.num_cached_tokens)
                    trace.tokens(len(output.new_token_ids))
                    for event in stop.feed(parser.feed(output.new_token_ids, output.logprobs)):
                        yield event
                    if output.failure is not None:
                        yield Failed(output.failure)
                        return
                    reason = FinishReason.STOP if stop.matched else output.finish_reason
                    if reason is FinishReason.ABORTED:
                        break
                    if reason is not None:
                        last = parser.finish(
                            reason,
                            num_prompt_tokens=len(request.generation.prompt_token_ids),
                            num_cached_tokens=trace.num_cached_tokens,
                        )
                        for event in stop.feed(last):
                            yield event
                        return
            yield Failed(
                Failure("engine_dead", "The engine ended the request before its answer was complete.")
            )
        except NotReadyError:  # the engine refused it, so nothing was yielded yet
            raise
        except Exception:
            logger.exception("Defect while generating", extra={"request_id": request.generation.request_id})
            yield Failed(Failure("internal", "The server met a defect of its own; its log has the details."))


def _variant(request: PreparedRequest, index: int) -> PreparedRequest:
    generation = request.generation
    sampling = generation.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + index) & 0x7FFF_FFFF_FFFF_FFFF)
    request_id = f"{generation.request_id}-{index}"
    return replace(request, generation=replace(generation, request_id=request_id, sampling=sampling))
