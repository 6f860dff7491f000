"""One request: rendered, checked, generated, parsed; and aborted when its reader leaves.

Owns the server's defaults for what the client left open, and the law that a request which has begun ends in
exactly one Finished or Failed. Must not know wire formats.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from sparkstral.chat.grammar import banned_token_ids, grammar_for, with_schema_held
from sparkstral.chat.length import excessive_length, texts_of
from sparkstral.chat.output_parser import OutputParser
from sparkstral.chat.render import RenderedPrompt, render
from sparkstral.chat.stop_strings import StopStrings
from sparkstral.chat.text_parser import TextParser, echo
from sparkstral.chat.tokenizer import ChatTokenizer, Control
from sparkstral.config import ServerConfig
from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import require_ready
from sparkstral.errors import NotReadyError, PromptTooLongError, RequestError
from sparkstral.serving.admission import Admission
from sparkstral.serving.answers import numbered
from sparkstral.serving.fetch import ImageFetcher
from sparkstral.serving.trace import Observer, Trace
from sparkstral.structured.check import GrammarCheck
from sparkstral.types import (
    UNHURRIED,
    ChatRequest,
    Failed,
    Failure,
    Finished,
    FinishReason,
    GenerationRequest,
    ImagePart,
    OutputEvent,
    SamplingChoice,
    SamplingParams,
    TextRequest,
    TokenOutput,
    Urgency,
    Usage,
)

DEFAULT_TEMPERATURE_TEXT = 1.0  # OpenAI's: a text is gone on with as the model finds likely
_ENDS = (Control.EOS.value,)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that was understood and fits. `repairs` names what was changed in its message list."""

    generation: GenerationRequest
    repairs: tuple[str, ...]
    stop: tuple[str, ...]
    prefilled_think: bool = False
    is_text: bool = False  # the answer is text alone; else it has the form of a chat's turn
    echoes: bool = False  # the prompt's text comes first
    not_enforced: tuple[str, ...] = ()  # places in the schema that the answer may not be true to
    has_answer: bool = True  # else only the prompt is wanted
    timeout_s: float | None = None  # the client's own
    arrived_s: float = field(default_factory=time.monotonic)


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
        self._fetcher = ImageFetcher(config.allowed_image_hosts)
        self._grammar_check = GrammarCheck()
        self.admission = admission

    async def render(self, request: ChatRequest) -> RenderedPrompt:
        """What the model would see. Raises RequestError."""
        rendered = await asyncio.to_thread(self._render, await self._with_images(request))
        self._observer.repaired(rendered.repairs)
        return rendered

    async def _with_images(self, request: ChatRequest) -> ChatRequest:
        """With the bytes of all images. Raises RequestError for one that cannot be had, or if none can be read."""
        images = [part for message in request.messages for part in message.parts if isinstance(part, ImagePart)]
        if not images:
            return request
        if not self._client.info.reads_images:
            place = images[0].place
            raise RequestError(
                f"`{place}` is an image, and {self._client.info.why_blind}. Send text alone.", place
            )
        return replace(request, messages=await self._fetcher.with_images(request.messages))

    def _render(self, request: ChatRequest) -> RenderedPrompt:
        rendered = render(request, self._tokenizer, self._config.max_images)
        if rendered.repairs and self._config.strict_history:
            raise RequestError(
                f"The chat format cannot say this message list: it would take {', '.join(rendered.repairs)}, and this "
                "server repairs nothing (--strict-history). docs/api.md tells what the repairs are.",
                request.place,
            )
        return rendered

    async def prepare(
        self, request: ChatRequest, request_id: str, urgency: Urgency = UNHURRIED, arrived_s: float | None = None
    ) -> PreparedRequest:
        """Render and check, in a slot of `admission` that the caller holds since it began to read the request, at
        `arrived_s` (of time.monotonic; None: now).

        Raises RequestError (PromptTooLongError …) or NotReadyError.
        """
        require_ready(self._client.status())
        arrived_s = time.monotonic() if arrived_s is None else arrived_s
        # In a thread: a long prompt takes seconds to encode, and other answers stream meanwhile.
        request = await self._with_images(request)
        prepared = await asyncio.to_thread(self._prepare, request, request_id)
        self._observer.repaired(prepared.repairs)
        return _urgent(prepared, urgency, arrived_s)

    def _prepare(self, request: ChatRequest, request_id: str) -> PreparedRequest:
        self._refuse_excess(list(texts_of(request)), request.place)
        rendered = self._render(request)
        room_tokens = self._room(len(rendered.prompt.token_ids), request.place)
        is_high = request.reasoning_effort == "high"
        config, choice = self._config, request.sampling
        sampling = self._sampling(
            choice,
            room_tokens,
            config.default_temperature_high if is_high else config.default_temperature_none,
            banned_token_ids(request),
        )
        request, not_enforced = with_schema_held(request, self._grammar_check)
        grammar = grammar_for(request, self._grammar_check, prefilled_think=rendered.prompt.prefilled_think)
        if grammar is not None and (choice.ignore_eos or choice.min_tokens):
            param = "ignore_eos" if choice.ignore_eos else "min_tokens"
            raise RequestError(
                f"`{param}` does not go with tools or a response_format: there the grammar says where an answer ends. "
                "Leave one of them out.",
                param,
            )
        prompt = rendered.prompt
        generation = GenerationRequest(request_id, prompt.token_ids, sampling, grammar, images=prompt.images)
        return PreparedRequest(
            generation,
            rendered.repairs,
            choice.stop,
            prefilled_think=rendered.prompt.prefilled_think,
            not_enforced=not_enforced,
        )

    async def prepare_text(
        self, request: TextRequest, request_id: str, urgency: Urgency = UNHURRIED, arrived_s: float | None = None
    ) -> PreparedRequest:
        """The same for a text to go on with."""
        require_ready(self._client.status())
        arrived_s = time.monotonic() if arrived_s is None else arrived_s
        prepared = await asyncio.to_thread(self._prepare_text, request, request_id)
        return _urgent(prepared, urgency, arrived_s)

    def _prepare_text(self, request: TextRequest, request_id: str) -> PreparedRequest:
        tokenizer, choice = self._tokenizer, request.sampling
        if isinstance(request.prompt, str):
            self._refuse_excess([request.prompt], "prompt")
            token_ids = tuple(tokenizer.encode(request.prompt, with_begin=request.adds_begin))
        else:
            token_ids = request.prompt
        self._check_token_ids(token_ids, "prompt")
        if not token_ids:
            raise RequestError("`prompt` has no token to go on from; send a text, or `add_special_tokens`.", "prompt")
        sampling = self._sampling(choice, self._room(len(token_ids), "prompt"), DEFAULT_TEMPERATURE_TEXT, ())
        is_explained = request.echo and choice.num_logprobs is not None
        if is_explained:
            sampling = replace(sampling, num_prompt_logprobs=choice.num_logprobs)
        # What the cache holds is not computed again, so that nothing could be told of it.
        generation = GenerationRequest(
            request_id, token_ids, sampling, cache_salt=request_id if is_explained else ""
        )
        return PreparedRequest(
            generation, (), choice.stop, is_text=True, echoes=request.echo, has_answer=choice.max_tokens != 0
        )

    def _room(self, num_prompt_tokens: int, param: str) -> int:
        """How many tokens an answer may have. Raises PromptTooLongError."""
        max_model_len = self._client.info.max_model_len
        if num_prompt_tokens < max_model_len:
            return max_model_len - num_prompt_tokens
        raise self._too_long(num_prompt_tokens, param)

    def _refuse_excess(self, texts: Sequence[str], param: str) -> None:
        """Raises PromptTooLongError for what need not be encoded to the end to be known to be too long."""
        num_tokens = excessive_length(texts, self._tokenizer, self._client.info.max_model_len)
        if num_tokens is not None:
            raise self._too_long(num_tokens, param, "about ")

    def _too_long(self, num_prompt_tokens: int, param: str, about: str = "") -> PromptTooLongError:
        max_model_len = self._client.info.max_model_len
        return PromptTooLongError(
            f"The prompt has {about}{num_prompt_tokens:,} tokens; the maximum context length of this server is "
            f"{max_model_len:,} tokens for prompt and answer together. Shorten the {param}, or restart "
            f"with --max-model-len {num_prompt_tokens + 1024} or more, if model and memory allow it.",
            param,
            num_prompt_tokens,
            max_model_len,
        )

    def _sampling(
        self, choice: SamplingChoice, room_tokens: int, default_temperature: float, banned: tuple[int, ...]
    ) -> SamplingParams:
        """What was asked for, with the server's defaults in the gaps."""
        self._check_token_ids([token_id for token_id, _ in choice.logit_bias], "logit_bias")
        wanted = room_tokens if choice.max_tokens is None else max(1, choice.max_tokens)
        max_tokens = min(wanted, room_tokens)
        if choice.min_tokens > max_tokens:
            raise RequestError(
                f"`min_tokens` is {choice.min_tokens:,}, and this answer can have {max_tokens:,} tokens at most.",
                "min_tokens",
            )
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=default_temperature if choice.temperature is None else choice.temperature,
            stop_token_ids=_ENDS,
            top_p=1.0 if choice.top_p is None else choice.top_p,
            top_k=choice.top_k or 0,
            min_p=choice.min_p or 0.0,
            seed=choice.seed,
            banned_token_ids=banned + (_ENDS if choice.ignore_eos else ()),
            min_tokens=choice.min_tokens,
            logit_bias=choice.logit_bias,
            presence_penalty=choice.presence_penalty,
            frequency_penalty=choice.frequency_penalty,
            repetition_penalty=choice.repetition_penalty,
            num_logprobs=choice.num_logprobs,
        )

    def _check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        vocab_size = self._tokenizer.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise RequestError(
                    f"`{param}` names token {token_id}; this model's are 0 to {vocab_size - 1:,}.", param
                )

    async def run_all(self, requests: Sequence[PreparedRequest]) -> AsyncGenerator[tuple[int, OutputEvent], None]:
        """The answers to all `requests`, side by side, each event with its answer's number, as they come. The last of
        each answer's is Finished; or a Failed is the last of all. Takes slots for itself.

        Raises OverloadedError or NotReadyError before the first event, and nothing after it. Closing it early, or
        cancelling its reader, aborts the requests in the engine.
        """
        has_begun = False
        with self.admission.slot(len(requests)):
            async with aclosing(numbered([self._traced(request) for request in requests])) as events:
                try:
                    async for event in events:
                        has_begun = True
                        yield event
                except NotReadyError as error:  # the engine took some of the answers and not the others
                    if not has_begun:
                        raise
                    yield 0, Failed(Failure("engine_dead", str(error)))

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
        parser: OutputParser | TextParser
        if request.is_text:
            parser = TextParser(self._tokenizer)
        else:
            parser = OutputParser(self._tokenizer, prefilled_think=request.prefilled_think)
        stop = StopStrings(request.stop)
        limit_s, whose_limit = self._config.request_timeout_s, "that this server gives to one (--request-timeout)"
        if request.timeout_s is not None and request.timeout_s < limit_s:
            limit_s, whose_limit = request.timeout_s, "that the client gave it"
        deadline_s = asyncio.get_running_loop().time() + limit_s - (time.monotonic() - request.arrived_s)
        has_echoed = not request.echoes
        try:
            async with aclosing(self._client.generate(request.generation)) as outputs:
                while (output := await _next(outputs, deadline_s)) is not None:
                    trace.num_cached_tokens = max(trace.num_cached_tokens, output.num_cached_tokens)
                    trace.tokens(len(output.new_token_ids))
                    if not has_echoed and output.failure is None:
                        has_echoed = True
                        is_explained = request.generation.sampling.num_prompt_logprobs is not None
                        logprobs = output.prompt_logprobs if is_explained else None
                        yield echo(request.generation.prompt_token_ids, logprobs, self._tokenizer)
                    if not request.has_answer and output.failure is None:
                        num_prompt_tokens = len(request.generation.prompt_token_ids)
                        yield Finished("length", Usage(num_prompt_tokens, 0, trace.num_cached_tokens))
                        return
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
        except TimeoutError:
            yield Failed(
                Failure(
                    "timeout",
                    f"The answer was not complete after {limit_s:g} s, the time {whose_limit}. "
                    "Ask for fewer tokens, or with less going on beside it.",
                )
            )
        except NotReadyError:  # the engine refused it, so nothing was yielded yet
            raise
        except Exception:
            logger.exception("Defect while generating", extra={"request_id": request.generation.request_id})
            yield Failed(Failure("internal", "The server met a defect of its own; its log has the details."))


async def _next(outputs: AsyncGenerator[TokenOutput, None], deadline_s: float) -> TokenOutput | None:
    """The next output, or None at their end. Raises TimeoutError, and then the request is aborted."""
    async with asyncio.timeout_at(deadline_s):
        return await anext(outputs, None)


def _urgent(request: PreparedRequest, urgency: Urgency, arrived_s: float) -> PreparedRequest:
    generation = replace(request.generation, priority=urgency.priority)
    return replace(request, generation=generation, timeout_s=urgency.timeout_s, arrived_s=arrived_s)


def variants(request: PreparedRequest, number: int) -> list[PreparedRequest]:
    """`number` times the same request, for as many answers. A seed of the client's counts up."""
    return [_variant(request, i) if i else request for i in range(number)]


def _variant(request: PreparedRequest, index: int) -> PreparedRequest:
    generation = request.generation
    sampling = generation.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + index) & 0x7FFF_FFFF_FFFF_FFFF)
    request_id = f"{generation.request_id}-{index}"
    return replace(request, generation=replace(generation, request_id=request_id, sampling=sampling))
