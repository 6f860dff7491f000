"""The description of the API at /openapi.json.

The bodies are read by api/body.py and not by FastAPI, so their schemas are added here.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sparkstral.api.wire import Wire

_COMPONENT = "#/components/schemas/{model}"


def body(kind: type[Wire]) -> dict[str, Any]:
    """What a route adds to its own description to name its body."""
    schema = {"$ref": _COMPONENT.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install(app: FastAPI, *bodies: type[Wire]) -> None:
    """Describe the app's routes and `bodies`."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for body in bodies:
                schema = body.model_json_schema(ref_template=_COMPONENT)
                schemas |= schema.pop("$defs", {})
                schemas[body.__name__] = schema
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]  # FastAPI's own way to extend the document
