"""When an engine is taken for stuck, and whether a dead one is started again.

Owns the two judgements and their numbers; must not know processes or clocks: times are given.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is waited for, in seconds. A ready engine speaks after each step, and each second when idle."""

    stalled_s: float = 10.0  # without a word: not ready. The longest step on a CPU takes about two
    wedged_s: float = 60.0  # then it is ended: nobody waits longer for a token than for an error and a new try
    silent_start_s: float = 600.0  # the same before it is ready: compiling and large files are silent for minutes
    first_delay_s: float = 1.0  # before a restart; each further one within the window waits four times as long
    max_failures: int = 3  # within the window; what fails so often fails for a reason that a restart does not cure
    window_s: float = 600.0


DEFAULT_PATIENCE = Patience()


@dataclass(slots=True)
class Pulse:
    """How long an engine has been silent, counted only while this process was awake: whoever stops both and lets
    them go on (a suspended machine, a debugger) must not find the engine killed."""

    max_step_s: float
    silent_s: float = 0.0
    _last_tick_s: float | None = None

    def beat(self) -> None:
        """The engine has spoken."""
        self.silent_s = 0.0

    def tick(self, now_s: float) -> float:
        """The silence, in seconds; to be called more often than every `max_step_s`, which is all that one call adds."""
        if self._last_tick_s is not None:
            self.silent_s += min(now_s - self._last_tick_s, self.max_step_s)
        self._last_tick_s = now_s
        return self.silent_s


@dataclass(slots=True)
class Restarts:
    """Counts the failures of the engines that followed one another."""

    patience: Patience
    _failures_s: list[float] = field(default_factory=list)

    def delay_after_failure(self, now_s: float) -> float | None:
        """Seconds to wait before the next start; None: no more starts."""
        patience = self.patience
        self._failures_s = [t for t in self._failures_s if now_s - t < patience.window_s] + [now_s]
        if self.num_recent >= patience.max_failures:
            return None
        return float(patience.first_delay_s * 4 ** (self.num_recent - 1))

    @property
    def num_recent(self) -> int:
        """The last failure, and those within the window before it."""
        return len(self._failures_s)
