"""An engine without a model: it plays a script of token ids, as the real one plays what it samples."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.engine.messages import Submit, encode
from sparkstral.errors import NotReadyError
from sparkstral.types import (
    EngineInfo,
    EnginePhase,
    EngineStats,
    EngineStatus,
    Failure,
    FinishReason,
    GenerationRequest,
    MemoryPressure,
    TokenLogprob,
    TokenOutput,
)
from tests.support.chat_cases import MARKERS


def written(tokenizer: ChatTokenizer, *pieces: str) -> list[int]:
    """The ids of an answer given in pieces: a piece that equals a marker is that control token."""
    ids: list[int] = []
    for piece in pieces:
        ids += [MARKERS[piece]] if piece in MARKERS else tokenizer.encode(piece)
    return ids


@dataclass
class FakeEngine:
    """`script` gives the token ids of a request's answer; one of its `stop_token_ids` ends it.

    `fail_after` breaks each answer after so many tokens; with `hang_after` it never goes on after so many.
    """

    script: Callable[[GenerationRequest], Sequence[int]]
    max_model_len: int = 4096
    why_blind: str = ""  # else it reads images
    now: EngineStatus = field(default_factory=lambda: EngineStatus(EnginePhase.READY, 1.0))
    num_cached_tokens: int = 0
    pressure: MemoryPressure | None = None
    fail_after: tuple[int, Failure] | None = None
    hang_after: int | None = None
    chunks: Sequence[int] = (1,)  # of how many tokens each output is, in turn
    requests: list[GenerationRequest] = field(default_factory=list)
    step_observers: list[Callable[[EngineStats], None]] = field(default_factory=list)
    num_started: int = 0
    num_stopped: int = 0
    is_hanging: threading.Event = field(default_factory=threading.Event)
    has_aborted: threading.Event = field(default_factory=threading.Event)

    async def start(self) -> None:
        self.num_started += 1

    async def wait_until_ready(self) -> EngineInfo:
        return self.info

    async def stop(self) -> None:
        self.num_stopped += 1

    def status(self) -> EngineStatus:
        return self.now

    @property
    def info(self) -> EngineInfo:
        if self.now.phase is not EnginePhase.READY:
            raise NotReadyError(f"The engine is {self.now.phase}.")
        return EngineInfo(
            self.max_model_len, 64, 1024, "none", "none", reads_images=not self.why_blind, why_blind=self.why_blind
        )

    def _logprobs(self, request: GenerationRequest, token_ids: Sequence[int]) -> Iterator[TokenLogprob]:
        num_top = request.sampling.num_logprobs
        for token_id in token_ids if num_top is not None else ():
            top = tuple((token_id + i, -0.25 * (i + 1)) for i in range(num_top or 0))
            yield TokenLogprob(token_id, -0.25, top)

    def _prompt_logprobs(self, request: GenerationRequest) -> tuple[TokenLogprob, ...]:
        num_top = request.sampling.num_prompt_logprobs
        if num_top is None:
            return ()
        return tuple(TokenLogprob(t, -0.5, ((t, -0.5),)[:num_top]) for t in request.prompt_token_ids[1:])

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0, num_free_blocks=1024, num_cached_blocks=0)

    def watch_steps(self, observer: Callable[[EngineStats], None]) -> None:
        self.step_observers.append(observer)

    def memory_pressure(self) -> MemoryPressure | None:
        return self.pressure

    def phase_age_s(self) -> float:
        return 30.0

    @property
    def process_id(self) -> int | None:
        return None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        if self.now.phase is not EnginePhase.READY:
            raise NotReadyError(f"The engine is {self.now.phase}.")
        encode(Submit(request))  # what could not cross to an engine process is no request
        self.requests.append(request)
        token_ids = list(self.script(request))[: request.sampling.max_tokens]
        ends = [i + 1 for i, token_id in enumerate(token_ids) if token_id in request.sampling.stop_token_ids]
        token_ids = token_ids[: ends[0]] if ends else token_ids
        borders = sorted({self.hang_after or 0, self.fail_after[0] if self.fail_after else 0, len(token_ids)})
        begin, is_over = 0, False
        try:
            for size in itertools.cycle(self.chunks):
                if is_over or begin == len(token_ids):
                    return
                await asyncio.sleep(0)
                if begin == self.hang_after:
                    self.is_hanging.set()
                    await asyncio.Event().wait()
                failure = self.fail_after[1] if self.fail_after and begin == self.fail_after[0] else None
                end = min(begin + size, *(border for border in borders if border > begin))
                new = () if failure else tuple(token_ids[begin:end])
                reason = None
                if not failure and end == len(token_ids):
                    reason = FinishReason.STOP if ends else FinishReason.LENGTH
                is_over = failure is not None or reason is not None
                yield TokenOutput(
                    request.request_id,
                    new,
                    reason,
                    failure,
                    len(request.prompt_token_ids),
                    self.num_cached_tokens,
                    tuple(self._logprobs(request, new)),
                    self._prompt_logprobs(request) if begin == 0 else (),
                )
                begin = end
        finally:
            if not is_over:
                self.has_aborted.set()
