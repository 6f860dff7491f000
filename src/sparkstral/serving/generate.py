"""One request: rendered, checked, generated, parsed; and aborted when its reader leaves.

Owns the server's defaults for what the client left open, and the law that a request which has begun ends in
exactly one Finished or Failed. Must not know wire formats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from sparkstral.chat.grammar import banned_token_ids, grammar_for
from sparkstral.chat.output_parser import OutputParser
from sparkstral.chat.render import RenderedPrompt, render
from sparkstral.chat.stop_strings import StopStrings
from sparkstral.chat.tokenizer import ChatTokenizer, Control
from sparkstral.config import ServerConfig
from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import require_ready
from sparkstral.errors import NotReadyError, PromptTooLongError
from sparkstral.serving.admission import Admission
from sparkstral.types import (
    ChatRequest,
    Failed,
    Failure,
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


class Generator:
    """Serves chat requests from one engine."""

    def __init__(self, client: EngineClient, tokenizer: ChatTokenizer, config: ServerConfig) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._config = config
        self.admission = Admission(config.max_in_flight)

    async def render(self, request: ChatRequest) -> RenderedPrompt:
        """What the model would see. Raises RequestError."""
        return await asyncio.to_thread(render, request, self._tokenizer)

    async def prepare(self, request: ChatRequest, request_id: str) -> PreparedRequest:
        """Render and check, in a slot of `admission` that the caller holds since it began to read the request.

        Raises RequestError (PromptTooLongError …) or NotReadyError.
        """
        require_ready(self._client.status())
        # In a thread: a long prompt takes seconds to encode, and other answers stream meanwhile.
        return await asyncio.to_thread(self._prepare, request, request_id)

    def _prepare(self, request: ChatRequest, request_id: str) -> PreparedRequest:
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
            stop_token_ids=(Control.EOS.value,),
            top_p=1.0 if choice.top_p is None else choice.top_p,
            top_k=choice.top_k or 0,
            min_p=choice.min_p or 0.0,
            seed=choice.seed,
            banned_token_ids=banned_token_ids(request),
        )
        grammar = grammar_for(request, prefilled_think=rendered.prompt.prefilled_think)
        generation = GenerationRequest(request_id, rendered.prompt.token_ids, sampling, grammar)
        return PreparedRequest(generation, rendered.repairs, rendered.prompt.prefilled_think, choice.stop)

    async def run(self, request: PreparedRequest) -> AsyncGenerator[OutputEvent, None]:
        """The answer's events as they come, the last of them Finished or Failed; takes a slot for itself.

        Raises OverloadedError or NotReadyError before the first event, and nothing after it. Closing it
        early, or cancelling its reader, aborts the request in the engine.
        """
        with self.admission.slot():
            async with aclosing(self._answer(request)) as events:
                async for event in events:
                    yield event

    async def _answer(self, request: PreparedRequest) -> AsyncGenerator[OutputEvent, None]:
        parser = OutputParser(self._tokenizer, prefilled_think=request.prefilled_think)
        stop = StopStrings(request.stop)
        num_cached_tokens = 0
        try:
            async with aclosing(self._client.generate(request.generation)) as outputs:
                async for output in outputs:
                    num_cached_tokens = max(num_cached_tokens, output.num_cached_tokens)
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
                            num_cached_tokens=num_cached_tokens,
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
