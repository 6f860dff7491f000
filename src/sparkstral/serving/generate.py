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
from dataclasses import dataclass

from sparkstral.chat.grammar import banned_token_ids, grammar_for
from sparkstral.chat.output_parser import OutputParser
from sparkstral.chat.render import render
from sparkstral.chat.stop_strings import StopStrings
from sparkstral.chat.tokenizer import ChatTokenizer, Control
from sparkstral.config import ServerConfig
from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import require_ready
from sparkstral.errors import NotReadyError, PromptTooLongError
from sparkstral.serving.admission import Admission
from sparkstral.serving.trace import Observer, Trace
from sparkstral.types import (
    ChatRequest,
    Failed,
    Failure,
    Finished,
    FinishReason,
    GenerationRequest,
    OutputEvent,
    SamplingParams,
)

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
            )
        choice, config = request.sampling, self._config
        is_high = request.reasoning_effort == "high"
        default_temperature = config.default_temperature_high if is_high else config.default_temperature_none
        sampling = SamplingParams(
            max_tokens=room_tokens if choice.max_tokens is None else min(choice.max_tokens, room_tokens),
            temperature=default_temperature if choice.temperature is None else choice.temperature,
            stop_token_ids=(Control.EOS.value,),
            top_p=1.0 if choice.top_p is None else choice.top_p,
            top_k=choice.top_k or 0,
            min_p=choice.min_p or 0.0,
            seed=choice.seed,
            banned_token_ids=banned_token_ids(request),
        )
        grammar = grammar_for(request, prefilled_think=rendered.prompt.prefilled_think)
        generation = GenerationRequest(request_id, rendered.prompt.token_ids, sampling, grammar)
        return PreparedRequest(generation, rendered.repairs, rendered.prompt.prefilled_think, choice.stop, arrived_s)

    async def run(self, request: PreparedRequest) -> AsyncGenerator[OutputEvent, None]:
        """The answer's events as they come, the last of them Finished or Failed; takes a slot for itself.

        Raises OverloadedError or NotReadyError before the first event, and nothing after it. Closing it
        early, or cancelling its reader, aborts the request in the engine.
        """
        generation = request.generation
        trace = Trace(
            generation.request_id, len(generation.prompt_token_ids), request.arrived_s, self._observer
        )
        with self.admission.slot(), trace:
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
                    for event in stop.feed(parser.feed(output.new_token_ids)):
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
