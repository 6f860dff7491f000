"""Whether requests can be served now, and if not, the sentence that says why."""

from __future__ import annotations

from sparkstral.errors import NotReadyError
from sparkstral.types import EnginePhase, EngineStatus


def require_ready(status: EngineStatus) -> None:
    """Raises NotReadyError, with the phase and the reason, unless the engine takes requests."""
    if status.phase is EnginePhase.READY:
        return
    detail = f": {status.detail.rstrip('.')}" if status.detail else ""
    if status.phase is EnginePhase.DEAD:
        raise NotReadyError(f"The engine is dead{detail}. Restart the server.")
    raise NotReadyError(f"The engine is {status.phase} ({status.progress:.0%}){detail}. Ask again soon.")
