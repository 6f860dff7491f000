"""What both clients do alike: one stream for each request, and the engine's phase, facts and counts.

Owns the client's side of the messages; must not know whether a thread or a process answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from sparkstral.engine.messages import Abort, FromEngine, Outputs, Ready, StatusChanged, Submit, ToEngine
from sparkstral.engine.readiness import failed_start, not_ready, require_ready
from sparkstral.errors import RequestError
from sparkstral.types import (
    EngineInfo,
    EnginePhase,
    EngineStats,
    EngineStatus,
    Failure,
    GenerationRequest,
    MemoryPressure,
    TokenOutput,
)

logger = logging.getLogger(__name__)


class _Stream:
    """One request's outputs between the engine and its reader.

    It is unbounded, since a slow reader must not stop the others, but small: at most max_tokens ids wait
    here.
    """

    def __init__(self) -> None:
        self._outputs: list[TokenOutput] = []
        self._arrived = asyncio.Event()
        self.has_ended = False

    def push(self, output: TokenOutput) -> None:
        self._outputs.append(output)
        self.has_ended = output.is_last
        self._arrived.set()

    async def take(self) -> TokenOutput:
        """All that has arrived as one output; waits for a first one."""
        await self._arrived.wait()
        self._arrived.clear()
        outputs, self._outputs = self._outputs, []
        return replace(
            outputs[-1],
            new_token_ids=tuple(token_id for output in outputs for token_id in output.new_token_ids),
            logprobs=tuple(logprob for output in outputs for logprob in output.logprobs),
            prompt_logprobs=outputs[0].prompt_logprobs,
        )


class LineClient(ABC):
    """Everything of `EngineClient` but `start` and `stop`. All methods run in the event loop's thread."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._status = EngineStatus(EnginePhase.STARTING)
        self._info: EngineInfo | None = None
        self._stats = EngineStats(0, num_running=0, num_waiting=0, num_free_blocks=0, num_cached_blocks=0)
        self._settled = asyncio.Event()  # READY or DEAD
        self._phase_began_s = time.monotonic()
        self._step_observers: list[Callable[[EngineStats], None]] = []

    @abstractmethod
    def _send(self, message: ToEngine) -> None:
        """Hand `message` to the engine without waiting; a dead engine swallows it."""

    async def wait_until_ready(self) -> EngineInfo:
        await self._settled.wait()
        if self._status.phase is EnginePhase.DEAD:
            raise failed_start(self._status)
        return self.info

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        require_ready(self._status)
        request_id = request.request_id
        if request_id in self._streams:
            raise RequestError(f"A request with the id {request_id!r} is being served; ids must be unique.")
        stream = self._streams[request_id] = _Stream()
        try:
            self._send(Submit(request))
            while True:
                output = await stream.take()
                yield output
                if output.is_last:
                    return
        finally:
            del self._streams[request_id]
            if not stream.has_ended:
                self._send(Abort(request_id))

    def status(self) -> EngineStatus:
        return self._status

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise not_ready(self._status)
        return self._info

    def stats(self) -> EngineStats:
        return self._stats

    def watch_steps(self, observer: Callable[[EngineStats], None]) -> None:
        self._step_observers.append(observer)

    def memory_pressure(self) -> MemoryPressure | None:
        return None

    def phase_age_s(self) -> float:
        return time.monotonic() - self._phase_began_s

    @property
    def process_id(self) -> int | None:
        return None

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Outputs(outputs, stats):
                self._stats = stats
                for observe in self._step_observers:
                    observe(stats)
                for output in outputs:
                    stream = self._streams.get(output.request_id)
                    if stream is not None:  # else its reader has left
                        stream.push(output)
            case Ready(info):
                self._info = info
                self._set_status(EngineStatus(EnginePhase.READY, 1.0))
            case StatusChanged(status):
                self._set_status(status)

    def _set_status(self, status: EngineStatus) -> None:
        """A phase begins. The reason for the last death stays, and every request that runs at a death ends with its
        reason (law L6)."""
        is_dying = self._status.phase is EnginePhase.DRAINING and status.phase is not EnginePhase.DEAD
        if self._status.phase is EnginePhase.DEAD or is_dying:
            return
        is_over = status.phase in (EnginePhase.DEAD, EnginePhase.RESTARTING)
        if is_over and self._info is not None and self._status.phase is not EnginePhase.DRAINING:
            # A start that fails is told to whoever waits for it; this nobody would hear of else.
            logger.error("The engine has died: %s", status.detail)
        if status.phase is not self._status.phase:
            self._phase_began_s = time.monotonic()
        self._status = status
        if is_over:
            failure = Failure("engine_dead", status.detail)
            for request_id, stream in self._streams.items():
                if not stream.has_ended:
                    stream.push(TokenOutput(request_id, (), failure=failure))
        if status.phase in (EnginePhase.READY, EnginePhase.DEAD):
            self._settled.set()
