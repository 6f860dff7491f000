"""GET /livez, /startupz, /readyz, /health: whether the server lives, how far its engine is, whether it can serve.

/livez says no more than that this process answers. /startupz is 200 once the engine has begun to serve, before that
it tells the phase and when it may be over. /health and /readyz are the same: 200 only while requests are served, which
takes a real token at first and signs of life from then on, and then with the engine's facts and counts.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from sparkstral.api.errors import RETRY_AFTER_S
from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import seconds_left
from sparkstral.types import EnginePhase

_STARTED = (EnginePhase.READY, EnginePhase.SHORT_OF_MEMORY, EnginePhase.STALLED, EnginePhase.DRAINING)


def health_router(client: EngineClient) -> APIRouter:
    router = APIRouter(tags=["health"])

    def answer(is_ok: bool, **more: Any) -> JSONResponse:
        status = client.status()
        body: dict[str, Any] = {
            "status": "ok" if is_ok else "unavailable",
            "phase": status.phase.value,
            "progress": status.progress,
            "detail": status.detail,
            **more,
        }
        return JSONResponse(body, 200 if is_ok else 503, {} if is_ok else {"Retry-After": str(RETRY_AFTER_S)})

    def memory() -> dict[str, Any] | None:
        pressure = client.memory_pressure()
        return None if pressure is None else asdict(pressure)

    @router.head("/readyz", include_in_schema=False)
    @router.head("/health", include_in_schema=False)
    @router.get("/readyz")
    @router.get("/health")
    async def health() -> JSONResponse:
        """200 when requests are served, with facts and counts of the engine; else
        503 with the engine's phase, progress (0 to 1) and reason. `memory`: how the host stands."""
        if client.status().phase is EnginePhase.READY:
            return answer(True, info=asdict(client.info), stats=asdict(client.stats()), memory=memory())
        return answer(False, memory=memory())

    @router.head("/startupz", include_in_schema=False)
    @router.get("/startupz")
    async def startupz() -> JSONResponse:
        """200 once the engine has made its first token; else 503 with its phase, for how long it has been in it
        (`phase_s`) and, while it loads, in how many seconds that may be done (`eta_s`)."""
        status, phase_s = client.status(), client.phase_age_s()
        left_s = seconds_left(status, phase_s)
        eta_s = None if left_s is None else round(left_s, 1)
        return answer(status.phase in _STARTED, phase_s=round(phase_s, 1), eta_s=eta_s)

    @router.head("/livez", include_in_schema=False)
    @router.get("/livez")
    async def livez() -> JSONResponse:
        """200 as long as this process answers."""
        return JSONResponse({"status": "ok"})

    return router
