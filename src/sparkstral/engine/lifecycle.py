"""An engine's life from nothing to its end, in the thread that calls.

Owns the phases and their reports; must not know which thread or process this is. Whatever ends it is told
once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sparkstral.config import EngineConfig
from sparkstral.engine.build import build_engine, exclusive_device
from sparkstral.engine.device_lock import DeviceLock
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.messages import STOPPED, FromEngine, Ready, StatusChanged
from sparkstral.errors import ConfigError, SparkstralError
from sparkstral.types import EnginePhase, EngineStatus

logger = logging.getLogger(__name__)


def live(config: EngineConfig, inbox: Inbox, send: Callable[[FromEngine], None]) -> None:
    """Build the engine, warm it up, serve until a `Shutdown` comes. Never raises: the reason of a bad end is
    the last message, with phase DEAD."""

    def report(phase: EnginePhase, progress: float = 0.0, detail: str = "") -> None:
        send(StatusChanged(EngineStatus(phase, progress, detail)))

    is_usage_error = False
    lock: DeviceLock | None = None
    try:
        if (device := exclusive_device(config)) is not None:
            lock = DeviceLock.take(device, config.port)
        core, info = build_engine(config, inbox, send, report)
        report(EnginePhase.WARMING_UP)
        core.warm_up()
        send(Ready(info))
        core.run()
        reason = STOPPED
    except SparkstralError as error:
        reason = str(error)
        is_usage_error = isinstance(error, ConfigError)
    except BaseException as error:  # a MemoryError too must be told
        logger.exception("the engine ends")
        reason = f"A defect of the engine ({type(error).__name__}); its log has the details."
    finally:
        if lock is not None:
            lock.release()
    send(StatusChanged(EngineStatus(EnginePhase.DEAD, detail=reason, is_usage_error=is_usage_error)))
