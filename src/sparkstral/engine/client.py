"""The engine as serving sees it: one interface, for an engine in this process and for one in a child process.

Owns the contract of `inproc.InprocEngineClient` and `process.ProcessEngineClient`; must not know either.
All methods are called from one asyncio event loop, the one in which `start` was awaited.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from sparkstral.types import EngineInfo, EngineStats, EngineStatus, GenerationRequest, MemoryPressure, TokenOutput


class EngineClient(Protocol):
    async def start(self) -> None:
        """Begin to load; returns at once. Watch `status()`, or await `wait_until_ready()`."""

    async def wait_until_ready(self) -> EngineInfo:
        """Return when one real token has been generated. Raises `ConfigError` or `NotReadyError` with the reason
        if it came to nothing."""

    async def stop(self) -> None:
        """End the engine and return when its memory is given back. Requests that still run get a `Failure`.
        May be called in any phase, and twice."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        """Yield the request's outputs as they come; the last one, and only that, has `is_last`.

        Raises `NotReadyError` at the first step if the engine does not take requests; once it has taken one,
        whatever goes wrong is a last output with a `Failure`. Closing the generator early (`aclose`, or the
        cancelled task around it) aborts the request: use `contextlib.aclosing` if you may leave before the
        end. Tokens of several steps come in one output when the reader is slower than the engine.
        """

    def status(self) -> EngineStatus:
        """Where the engine stands now; never blocks."""

    @property
    def info(self) -> EngineInfo:
        """The engine's fixed facts. Raises `NotReadyError` before it has been ready once."""

    def stats(self) -> EngineStats:
        """The counts after the newest step that this process knows of; zeros before the first."""

    def watch_steps(self, observer: Callable[[EngineStats], None]) -> None:
        """Call `observer` with the counts after every step, and now and then while there is none."""

    def memory_pressure(self) -> MemoryPressure | None:
        """How the host's memory stands, as it was seen last; None if nobody looks."""

    def phase_age_s(self) -> float:
        """Seconds since the phase of `status()` began."""

    @property
    def process_id(self) -> int | None:
        """Of the engine's process, while it has one of its own."""
