"""The engine of this process, driven directly: requests in, the time of every token out.

Owns all that bench/ knows of the engine: it lives in a thread as in engine/inproc, but its messages are noted where
they are sent, so that neither an event loop nor a socket is in the times. The measuring thread sleeps meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkstral.config import EngineConfig
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.lifecycle import live
from sparkstral.engine.messages import FromEngine, Outputs, Ready, Shutdown, StatusChanged, Submit
from sparkstral.errors import NotReadyError, SparkstralError
from sparkstral.types import EngineInfo, EnginePhase, GenerationRequest, ImageInput, SamplingParams


@dataclass(slots=True)
class TokenTimes:
    """What came of one request: perf_counter seconds of each token."""

    times: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0


class EngineUnderTest:
    """`with EngineUnderTest(config) as engine:` is ready inside the block. Raises NotReadyError with the engine's
    reason if it does not come up."""

    def __init__(self, config: EngineConfig) -> None:
        self._inbox = Inbox()
        self._thread = threading.Thread(target=live, args=(config, self._inbox, self._hear), name="engine", daemon=True)
        self._changed = threading.Event()
        self._reason: str | None = None
        self._open: dict[str, TokenTimes] = {}
        self._failures: list[str] = []
        self._num_requests = 0
        self.info: EngineInfo | None = None
        self.phase_times: dict[EnginePhase, float] = {}  # when each began

    def __enter__(self) -> EngineUnderTest:
        self._thread.start()
        while self.info is None:
            self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._inbox.put(Shutdown())
        self._thread.join()

    def run(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, images: tuple[ImageInput, ...] = ()
    ) -> tuple[float, list[TokenTimes]]:
        """Generate exactly `max_tokens` greedily for all prompts at once -> (perf_counter when they were sent, what
        came of each). `images` are of every prompt. Raises SparkstralError if one fails."""
        results = [TokenTimes() for _ in prompts]
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=())
        requests = []
        for prompt, result in zip(prompts, results, strict=True):
            self._num_requests += 1
            request_id = f"bench-{self._num_requests}"
            self._open[request_id] = result
            requests.append(GenerationRequest(request_id, tuple(prompt), sampling, images=images))
        begin = time.perf_counter()
        for request in requests:
            self._inbox.put(Submit(request))
        while self._open:
            self._wait()
        if self._failures:
            failures, self._failures = self._failures, []
            raise SparkstralError(f"A request failed: {failures[0]}")
        return begin, results

    def _wait(self) -> None:
        self._changed.wait()
        self._changed.clear()
        if self._reason is not None:
            raise NotReadyError(f"The engine ended: {self._reason}")

    def _hear(self, message: FromEngine) -> None:
        """In the engine's thread."""
        now = time.perf_counter()
        match message:
            case Outputs(outputs):
                for output in outputs:
                    result = self._open[output.request_id]
                    result.times += [now] * len(output.new_token_ids)
                    result.token_ids += output.new_token_ids
                    result.num_cached_tokens = max(result.num_cached_tokens, output.num_cached_tokens)
                    if output.failure is not None:
                        self._failures.append(output.failure.message)
                    if output.is_last:
                        del self._open[output.request_id]
                if not self._open:
                    self._changed.set()
            case Ready(info):
                self.info = info
                self._changed.set()
            case StatusChanged(status):
                self.phase_times.setdefault(status.phase, now)
                if status.phase is EnginePhase.DEAD:
                    self._reason = status.detail
                    self._changed.set()
