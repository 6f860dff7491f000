"""The step loop: drain the messages, plan a step, carry it out, take in the result, send what came of it.

Owns the order of these and the requests that wait for their grammar; must not know processes, sockets or how
an engine is built. Runs in one thread, which alone touches requests, blocks and the device (law L4).
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from sparkstral.engine.host_process import release_free_heap
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.kv_persistence import KvPersistence
from sparkstral.engine.messages import Abort, FromEngine, Outputs, ShrinkCaches, Shutdown, Submit
from sparkstral.errors import SparkstralError
from sparkstral.runner.model_runner import DeviceError
from sparkstral.scheduler.scheduler import Scheduler
from sparkstral.structured.compiler import Compilation, GrammarCompiler
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.types import (
    Failure,
    FinishReason,
    GenerationRequest,
    ModelRunnerOutput,
    SamplingParams,
    SchedulerOutput,
    TokenOutput,
)

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

HEARTBEAT_S = 1.0  # an idle engine says that it lives; who listens may worry after a few of these
WARM_UP_REQUEST = GenerationRequest("warm-up", (1,), SamplingParams(max_tokens=1, temperature=0, stop_token_ids=()))


class Runner(Protocol):
    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput: ...


@runtime_checkable
class OverlappingRunner(Protocol):
    """A runner that computes while the next step is planned: then two steps are in flight."""

    def submit(self, step: SchedulerOutput) -> Any: ...

    def collect(self, pending: Any) -> ModelRunnerOutput: ...


@dataclass(frozen=True, slots=True)
class _Submitted:
    step: SchedulerOutput
    pending: Any  # the runner's; None: it could not be launched
    begin_s: float  # of time.perf_counter


class EngineCore:
    """One engine, from messages to messages."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        grammars: GrammarCompiler,
        inbox: Inbox,
        send: Callable[[FromEngine], None],
        persistence: KvPersistence | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._grammars = grammars
        self._inbox = inbox
        self._send = send
        self._persistence = persistence
        self._overlapping = runner if isinstance(runner, OverlappingRunner) else None
        self._submitted: _Submitted | None = None  # the step in flight, of an overlapping runner
        self._device_free_s = 0.0  # when it ended the last step that was collected
        self._work_came_s = 0.0  # when there was work again after there was none
        self._outputs: list[TokenOutput] = []
        self._waiting_for_grammar: dict[str, tuple[GenerationRequest, Compilation]] = {}
        # Holding a grammar keeps it from being forgotten while its request may still be preempted and resumed.
        self._grammars_in_use: dict[str, CompiledGrammar] = {}

    def warm_up(self) -> None:
        """Generate one real token through the whole path. Raises `SparkstralError` if none comes."""
        self._admit(WARM_UP_REQUEST)
        while not self._outputs:
            self._step()
        failure = self._outputs.pop().failure
        if failure is not None:
            raise SparkstralError(f"The first token could not be generated: {failure.message}")

    def run(self) -> None:
        """Serve until a `Shutdown` comes. Raises `DeviceError` if the device is lost."""
        while True:
            next_poll_s = self._grammars.poll()
            self._admit_compiled()
            for request in self._persistence.work() if self._persistence else ():
                self._enter(request)
            if self._outputs or self._has_work or (self._persistence and self._persistence.is_busy):
                wait_s = 0.0
            else:
                wait_s = HEARTBEAT_S if next_poll_s is None else min(HEARTBEAT_S, next_poll_s)
            messages = self._inbox.take(wait_s)
            if wait_s:
                self._work_came_s = time.perf_counter()
            for message in messages:
                match message:
                    case Submit(request):
                        self._submit(request)
                    case Abort(request_id):
                        self._abort(request_id)
                    case ShrinkCaches():
                        self._shrink()
                    case Shutdown():
                        if self._persistence:
                            self._persistence.close()
                        return
            if self._has_work:
                self._step()
            self._flush()

    @property
    def _has_work(self) -> bool:
        return self._scheduler.has_work or self._submitted is not None

    def _submit(self, request: GenerationRequest) -> None:
        if request.grammar is None:
            self._admit(request)
        else:
            compilation = self._grammars.compile(request.grammar)
            self._waiting_for_grammar[request.request_id] = (request, compilation)

    def _admit_compiled(self) -> None:
        for request, compilation in list(self._waiting_for_grammar.values()):
            if compilation.result is None:
                continue
            del self._waiting_for_grammar[request.request_id]
            if isinstance(compilation.result, Failure):
                num_prompt_tokens = len(request.prompt_token_ids)
                self._outputs.append(
                    TokenOutput(
                        request.request_id,
                        (),
                        failure=compilation.result,
                        num_prompt_tokens=num_prompt_tokens,
                    )
                )
            else:
                self._grammars_in_use[request.request_id] = compilation.result
                self._admit(request)

    def _admit(self, request: GenerationRequest) -> None:
        if self._persistence is None or not self._persistence.begin(request):
            self._enter(request)

    def _enter(self, request: GenerationRequest) -> None:
        refusal = self._scheduler.add(request)
        if refusal is not None:
            self._outputs.append(refusal)

    def _abort(self, request_id: str) -> None:
        is_restored = self._persistence is not None and self._persistence.cancel(request_id)
        if is_restored or self._waiting_for_grammar.pop(request_id, None) is not None:
            self._outputs.append(TokenOutput(request_id, (), finish_reason=FinishReason.ABORTED))
            return
        output = self._scheduler.abort(request_id)
        if output is not None:
            self._outputs.append(output)

    def _shrink(self) -> None:
        """What the host gets back is small: tables, grammars, free pieces of the heap. The pool itself stays, since
        nothing is allocated on the device after the start."""
        num_blocks = self._scheduler.forget_unused_blocks()
        self._grammars.forget_unused()
        gc.collect()
        release_free_heap()
        logger.warning("memory is short: %d cached blocks and unused grammars are forgotten", num_blocks)

    def _step(self) -> None:
        if self._overlapping is not None:
            self._overlapped_step(self._overlapping)
            return
        step = self._scheduler.schedule()
        begin_s = time.perf_counter()
        result = self._guarded(step, lambda: self._runner.execute(step))
        self._take_in(step, begin_s, result)

    def _overlapped_step(self, runner: OverlappingRunner) -> None:
        """Launch the step after the one in flight, then take in the latter's tokens."""
        current = self._submitted or self._submit_step(runner, self._scheduler.schedule())
        ahead = None if current.pending is None else self._scheduler.schedule_ahead()
        self._submitted = None if ahead is None else self._submit_step(runner, ahead)
        step, pending = current.step, current.pending
        result = None if pending is None else self._guarded(step, lambda: runner.collect(pending))
        self._take_in(step, current.begin_s, result)

    def _take_in(self, step: SchedulerOutput, begin_s: float, result: ModelRunnerOutput | None) -> None:
        """`step` is over, with this result, or none: it failed."""
        now_s = time.perf_counter()
        free_s, self._device_free_s = self._device_free_s, now_s
        self._scheduler.took(step, now_s - max(begin_s, free_s), now_s - max(self._work_came_s, free_s))
        self._outputs.extend(self._scheduler.update(step, result or _failed(step)))

    def _submit_step(self, runner: OverlappingRunner, step: SchedulerOutput) -> _Submitted:
        begin_s = time.perf_counter()
        return _Submitted(step, self._guarded(step, lambda: runner.submit(step)), begin_s)

    def _guarded(self, step: SchedulerOutput, work: Callable[[], _T]) -> _T | None:
        """The result of `work`, or None if it raised: the device works on, so only those whose step this was have lost
        something. What is to be read in an exception (paths, addresses) is for the log alone."""
        try:
            return work()
        except DeviceError:
            raise
        except Exception:
            logger.exception("step %d failed", step.step)
            return None

    def _flush(self) -> None:
        for output in self._outputs:
            if output.is_last:
                self._grammars_in_use.pop(output.request_id, None)
        self._send(Outputs(tuple(self._outputs), self._scheduler.stats()))
        self._outputs.clear()


def _failed(step: SchedulerOutput) -> ModelRunnerOutput:
    failure = Failure("internal", "A step of the model failed; the server's log says why. Try again.")
    return ModelRunnerOutput({}, {request.request_id: failure for request in step.scheduled})
