"""What an engine's status means for those who want something of it: the sentence that says why not.

Owns these sentences, and when a start may be over; must not know status or exit codes.
"""

from __future__ import annotations

from sparkstral.errors import ConfigError, NotReadyError, SparkstralError
from sparkstral.types import EnginePhase, EngineStatus

MIN_PROGRESS = 0.02  # of a phase, before its end is guessed from it


def seconds_left(status: EngineStatus, phase_s: float) -> float | None:
    """Of loading or warming up, which `phase_s` ago began, if it goes on at its pace; None where nobody can tell."""
    is_told = status.phase in (EnginePhase.LOADING, EnginePhase.WARMING_UP) and MIN_PROGRESS <= status.progress <= 1
    return phase_s / status.progress - phase_s if is_told else None


def require_ready(status: EngineStatus) -> None:
    """Raises NotReadyError, with the phase and the reason, unless the engine takes requests."""
    if status.phase is not EnginePhase.READY:
        raise not_ready(status)


def not_ready(status: EngineStatus) -> NotReadyError:
    """For whoever asks an engine in vain: the phase, the reason and what to do."""
    detail = f": {status.detail.rstrip('.')}" if status.detail else ""
    if status.phase is EnginePhase.DEAD:
        return NotReadyError(f"The engine is dead{detail}. Restart the server.")
    progress = f" ({status.progress:.0%})" if status.phase is EnginePhase.LOADING else ""
    return NotReadyError(f"The engine is {status.phase}{progress}{detail}. Ask again soon.")


def failed_start(status: EngineStatus) -> SparkstralError:
    """For whoever started an engine that died: the reason alone; a ConfigError if its settings are to blame."""
    return ConfigError(status.detail) if status.is_usage_error else NotReadyError(status.detail)
