"""The engine in a thread of this process: for tests, and for programs that embed the engine.

Owns that thread and the way back into the event loop; the same engine and the same client as across the line.
"""

from __future__ import annotations

import asyncio
import threading

from sparkstral.config import EngineConfig
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.lifecycle import live
from sparkstral.engine.line_client import LineClient
from sparkstral.engine.messages import STOPPED, FromEngine, Shutdown, ToEngine
from sparkstral.types import EnginePhase, EngineStatus


class InprocEngineClient(LineClient):
    """An `EngineClient`; see there."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        self._config = config
        self._inbox = Inbox()
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        def send(message: FromEngine) -> None:
            try:
                loop.call_soon_threadsafe(self._receive, message)
            except RuntimeError:  # the loop was closed, so no one is left to serve
                self._inbox.put(Shutdown())

        self._thread = threading.Thread(target=live, args=(self._config, self._inbox, send), name="engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._set_status(EngineStatus(EnginePhase.DRAINING))
        self._send(Shutdown())
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._set_status(EngineStatus(EnginePhase.DEAD, detail=STOPPED))

    def _send(self, message: ToEngine) -> None:
        self._inbox.put(message)
