"""GET /health, /readyz, /livez: whether the server can serve, and if not, why not and how far it is.

/health and /readyz are the same: 200 only once the engine has made a real token and takes requests, and then
with the engine's facts and counts. /livez says no more than that this process answers; it stays 200 while the
model loads.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from sparkstral.api.errors import RETRY_AFTER_S
from sparkstral.engine.client import EngineClient
from sparkstral.types import EnginePhase


def health_router(client: EngineClient) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.head("/readyz", include_in_schema=False)
    @router.head("/health", include_in_schema=False)
    @router.get("/readyz")
    @router.get("/health")
    async def health() -> JSONResponse:
        """200 when requests are served, with facts and counts of the engine; else
        503 with the engine's phase, progress (0 to 1) and reason."""
        status = client.status()
        is_ready = status.phase is EnginePhase.READY
        body: dict[str, Any] = {
            "status": "ok" if is_ready else "unavailable",
            "phase": status.phase.value,
            "progress": status.progress,
            "detail": status.detail,
        }
        if is_ready:
            body |= {"info": asdict(client.info), "stats": asdict(client.stats())}
        return JSONResponse(
            body, 200 if is_ready else 503, {} if is_ready else {"Retry-After": str(RETRY_AFTER_S)}
        )

    @router.head("/livez", include_in_schema=False)
    @router.get("/livez")
    async def livez() -> JSONResponse:
        """200 as long as this process answers."""
        return JSONResponse({"status": "ok"})

    return router
