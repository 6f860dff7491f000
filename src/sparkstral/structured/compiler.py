"""Compiling grammars without stopping the step loop.

Owns the worker threads, their time limit and the cache; must not know what a grammar says. Called by the
engine thread alone: workers only compile and leave their result in a queue, so that there is nothing to lock
(law L4).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from sparkstral.structured.matcher import CompiledGrammar, GrammarError
from sparkstral.types import Failure, GrammarSpec

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 5.0  # a schema of 2,400 patterned properties takes 0.2 s (measured 2026-12-02)
MAX_WORKERS = 2  # compiling is rare; more would only take cores from the model
MAX_CACHED = 32  # an agent's few tool sets; each holds well under a MiB


@dataclass(eq=False, slots=True)
class Compilation:
    """One grammar on its way; `result` is set by `GrammarCompiler.poll`, once."""

    spec: GrammarSpec
    result: CompiledGrammar | Failure | None = None
    started_at_s: float = 0.0


class GrammarCompiler:
    """Compiles each grammar once, however many requests ask for it."""

    def __init__(
        self,
        build: Callable[[str], CompiledGrammar],
        wake: Callable[[], None],
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        """`build` compiles a lark text and raises `GrammarError`; `wake` is called by a worker when it is done."""
        self._build = build
        self._wake = wake
        self._time_limit_s = time_limit_s
        self._queued: deque[Compilation] = deque()
        self._running: list[Compilation] = []
        self._done: queue.SimpleQueue[tuple[Compilation, CompiledGrammar | Failure]] = queue.SimpleQueue()
        self._recent: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        # What a request still uses stays findable after it has left the recent ones.
        self._live: weakref.WeakValueDictionary[GrammarSpec, CompiledGrammar] = weakref.WeakValueDictionary()

    def compile(self, spec: GrammarSpec) -> Compilation:
        """Begin; the result may be there already. The caller keeps the result for as long as its request lives."""
        grammar = self._live.get(spec)
        if grammar is not None:
            self._remember(spec, grammar)
            return Compilation(spec, grammar)
        for compilation in (*self._running, *self._queued):
            if compilation.spec == spec:
                return compilation
        compilation = Compilation(spec)
        self._queued.append(compilation)
        self._start_workers()
        return compilation

    def forget_unused(self) -> None:
        """Only what requests still use stays."""
        self._recent.clear()

    def compiled(self, spec: GrammarSpec) -> CompiledGrammar:
        """The grammar of a request that was admitted with it."""
        return self._live[spec]

    def poll(self) -> float | None:
        """Set the results of what is done or overdue. Returns in how many seconds to poll at the latest, if at all."""
        while not self._done.empty():
            compilation, result = self._done.get()
            if compilation in self._running:  # else it was given up
                self._running.remove(compilation)
                compilation.result = result
                if isinstance(result, CompiledGrammar):
                    self._live[compilation.spec] = result
                    self._remember(compilation.spec, result)
        now = time.monotonic()
        for compilation in list(self._running):
            if now - compilation.started_at_s > self._time_limit_s:
                self._running.remove(compilation)  # its thread is left to end by itself: no one waits for it
                compilation.result = Failure(
                    "grammar",
                    f"The schema or grammar did not compile in {self._time_limit_s:g} s. Make it simpler.",
                )
        self._start_workers()
        if not self._running:
            return None
        return max(0.0, min(c.started_at_s for c in self._running) + self._time_limit_s - now)

    def _start_workers(self) -> None:
        while self._queued and len(self._running) < MAX_WORKERS:
            compilation = self._queued.popleft()
            compilation.started_at_s = time.monotonic()
            self._running.append(compilation)
            # Not a pool: a hung thread of a pool would keep its place, and the process from ending.
            threading.Thread(target=self._work, args=(compilation,), name="grammar", daemon=True).start()

    def _work(self, compilation: Compilation) -> None:
        result: CompiledGrammar | Failure
        try:
            result = self._build(compilation.spec.lark)
        except GrammarError as error:
            result = Failure("grammar", f"The schema or grammar cannot be used: {error}")
        except Exception:
            logger.exception("a grammar could not be compiled")
            result = Failure("grammar", "The schema or grammar could not be compiled; the server's log says why.")
        self._done.put((compilation, result))
        self._wake()

    def _remember(self, spec: GrammarSpec, grammar: CompiledGrammar) -> None:
        self._recent[spec] = grammar
        self._recent.move_to_end(spec)
        while len(self._recent) > MAX_CACHED:
            self._recent.popitem(last=False)
