"""GET /v1/models and /v1/models/{model}: the one model, with the context length that it is served with."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from sparkstral.api.errors import UnknownModelError
from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import require_ready


def require_served(model: str, served_name: str) -> None:
    """Raises UnknownModelError, naming the served one, when `model` is another."""
    if model != served_name:
        raise UnknownModelError(
            f"The model {model[:100]!r} is not served here; this server serves {served_name!r}.", "model"
        )


def models_router(client: EngineClient, served_name: str) -> APIRouter:
    router = APIRouter(prefix="/v1/models", tags=["models"])
    created = int(time.time())

    def card(request: Request) -> dict[str, Any]:
        """In the form of the protocol whose headers the request has."""
        require_ready(client.status())
        if "anthropic-version" in request.headers:
            return {
                "type": "model",
                "id": served_name,
                "display_name": served_name,
                "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
                "lifecycle": "active",
                "max_input_tokens": client.info.max_model_len,
                "max_tokens": client.info.max_model_len,
            }
        return {
            "id": served_name,
            "object": "model",
            "created": created,
            "owned_by": "mistralai",
            "max_model_len": client.info.max_model_len,
        }

    @router.head("", include_in_schema=False)
    @router.get("/", include_in_schema=False)
    @router.get("")
    async def list_models(request: Request) -> dict[str, Any]:
        """The served model. `max_model_len` counts prompt and answer together; 503 until it is known. Asked with
        Anthropic's headers it answers in Anthropic's form."""
        models = {"data": [card(request)]}
        if "anthropic-version" in request.headers:
            return {**models, "has_more": False, "first_id": served_name, "last_id": served_name}
        return {"object": "list", **models}

    @router.head("/{model:path}", include_in_schema=False)
    @router.get("/{model:path}")
    async def get_model(model: str, request: Request) -> dict[str, Any]:
        """The served model by its name; 404 for any other."""
        require_served(model, served_name)
        return card(request)

    return router
