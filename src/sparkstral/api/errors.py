"""What goes wrong, as HTTP: the only place that knows status codes and the protocols' error objects.

    OpenAI     {"error": {"message": …, "type": …, "param": …, "code": …}}
    Anthropic  {"type": "error", "error": {"type": …, "message": …}}   under /v1/messages, or asked with its headers

| what | status | type | code |
|---|---|---|---|
| a field or a message list that cannot be served | 400 | invalid_request_error | invalid_value |
| a schema that cannot be compiled or held to | 400 | invalid_request_error | grammar |
| prompt longer than the context | 400 | invalid_request_error | context_length_exceeded |
| no API key, or a wrong one | 401 | authentication_error | invalid_api_key |
| a name by which a server for its own machine is not asked | 403 | invalid_request_error | forbidden_host |
| a model that is not served; a response that is not kept | 404 | … | model_not_found; response_not_found |
| an unknown path | 404 | invalid_request_error | not_found |
| wrong method | 405 | invalid_request_error | method_not_allowed |
| body that stops coming | 408 | invalid_request_error | request_timeout |
| body larger than max_body_bytes | 413 | invalid_request_error | body_too_large |
| body that is not declared as JSON | 415 | invalid_request_error | unsupported_media_type |
| the answer took longer than request_timeout_s (x-should-retry: false) | 504 | server_error | timeout |
| too many requests in flight | 429 + Retry-After | rate_limit_error | overloaded |
| engine not ready, or dead | 503 + Retry-After | service_unavailable | engine_not_ready; engine_dead |
| one request's numbers went wrong; a defect of ours | 500 | server_error | numerics; internal_error |
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path
from starlette.types import Scope

from sparkstral.errors import (
    NotReadyError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    SparkstralError,
)
from sparkstral.types import Failure

logger = logging.getLogger(__name__)

MAX_SHOWN_CHARS = 200  # of a path, in a sentence
RETRY_AFTER_S = 5  # loading takes minutes: often enough to notice, seldom enough to cost nothing


class UnknownModelError(RequestError):
    """The body names a model that this server does not serve."""


class UnknownResponseError(RequestError):
    """A response is named that is not kept here, or not any more."""


class UnsupportedMediaTypeError(RequestError):
    """The body is declared to be something other than JSON."""


class UnauthorizedError(RequestError):
    """The request has no key, or none of this server's."""


class ForbiddenHostError(RequestError):
    """The request is for a name that only a page of another site would use."""


class BodyTooSlowError(RequestError):
    """The body has stopped coming before its end."""


class BodyTooLargeError(RequestError):
    """The body has more bytes than the server takes."""


class FailedError(SparkstralError):
    """The engine gave a request up before its answer was complete."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


_FAILURES: Mapping[str, tuple[int, str, str]] = {
    "engine_dead": (503, "service_unavailable", "engine_dead"),
    "invalid_request": (400, "invalid_request_error", "invalid_value"),
    "grammar": (400, "invalid_request_error", "grammar"),
    "numerics": (500, "server_error", "numerics"),
    "internal": (500, "server_error", "internal_error"),
    "timeout": (504, "server_error", "timeout"),
}
_REQUEST_ERRORS: tuple[tuple[type[RequestError], int, str], ...] = (  # the first that fits
    (PromptTooLongError, 400, "context_length_exceeded"),
    (UnauthorizedError, 401, "invalid_api_key"),
    (UnknownModelError, 404, "model_not_found"),
    (UnknownResponseError, 404, "response_not_found"),
    (ForbiddenHostError, 403, "forbidden_host"),
    (BodyTooSlowError, 408, "request_timeout"),
    (BodyTooLargeError, 413, "body_too_large"),
    (UnsupportedMediaTypeError, 415, "unsupported_media_type"),
    (RequestError, 400, "invalid_value"),
)


def error_object(message: str, type_: str, code: str, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object; unlike elsewhere its absent parts are null, as OpenAI sends them."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of an error; anything that is not meant for the user is an internal error."""
    match error:
        case RequestError():
            status, code = next((s, c) for kind, s, c in _REQUEST_ERRORS if isinstance(error, kind))
            headers = {}
            if status in (408, 413):
                headers["Connection"] = "close"  # the rest of the body is not waited for
            elif status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            type_ = "authentication_error" if status == 401 else "invalid_request_error"
            return status, error_object(str(error), type_, code, error.param), headers
        case OverloadedError():
            headers = {"Retry-After": str(error.retry_after_s)}
            return 429, error_object(str(error), "rate_limit_error", "overloaded"), headers
        case NotReadyError():
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            return 503, error_object(str(error), "service_unavailable", "engine_not_ready"), headers
        case FailedError():
            status, type_, code = _FAILURES[error.failure.code]
            headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
            if status == 504:  # it took all the time it had: official clients would ask twice more, for as long again
                headers["x-should-retry"] = "false"
            return status, error_object(str(error), type_, code), headers
        case _:
            message = "The server met a defect of its own; its log has the details."
            return 500, error_object(message, "server_error", "internal_error"), {}


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def to_anthropic(body: Mapping[str, Any], status: int) -> dict[str, Any]:
    """The same error in Anthropic's form."""
    message = body["error"]["message"]
    return {"type": "error", "error": {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message}}


def answer(scope: Scope, error: Exception) -> JSONResponse:
    """The error as the client that asked for `scope` expects it: each protocol has its own form."""
    status, body, headers = describe(error)
    return _answer(scope, status, body, headers, error)


def _answer(
    scope: Scope, status: int, body: dict[str, Any], headers: Mapping[str, str] | None, error: Exception
) -> JSONResponse:
    if scope["path"].startswith("/v1/messages") or b"anthropic-version" in dict(scope["headers"]):
        if isinstance(error, PromptTooLongError):  # by these words Claude Code knows that it must compact its talk
            numbers = f"{error.num_prompt_tokens} tokens > {error.max_model_len} maximum"
            body["error"]["message"] = f"prompt is too long: {numbers}. {error}"
        body = to_anthropic(body, status)
    return JSONResponse(body, status, {**request_ids(scope, "req_"), **(headers or {})})


def request_ids(scope: Scope, prefix: str) -> dict[str, str]:
    """The headers by which an answer names its request, as both protocols' clients read them; the id is made when it is
    first asked for, and begins with `prefix`."""
    request_id: str = scope.setdefault("sparkstral.request_id", f"{prefix}{uuid.uuid4().hex}")
    return {"x-request-id": request_id, "request-id": request_id}


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    response = answer(request.scope, error)
    if response.status_code == 500 and not isinstance(error, FailedError):  # that one is logged where it arose
        fields = {"request_id": response.headers["x-request-id"]}
        logger.error("Defect while serving %s %s", request.method, request.url.path, exc_info=error, extra=fields)
    return response


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Errors of the router itself: unknown path, wrong method."""
    assert isinstance(error, HTTPException)  # registered for nothing else
    path, method, headers = request.url.path[:MAX_SHOWN_CHARS], request.method, dict(error.headers or {})
    if error.status_code == 404:
        body = error_object(
            f"There is nothing at {path}; /openapi.json lists what is served.", "invalid_request_error", "not_found"
        )
    elif error.status_code == 405:
        headers["Allow"] = allowed = _methods(request) or headers.get("Allow", "another method")
        body = error_object(
            f"{path} takes {allowed}, not {method}.", "invalid_request_error", "method_not_allowed"
        )
    else:
        body = error_object(str(error.detail), "invalid_request_error", "http_error")
    return _answer(request.scope, error.status_code, body, headers, error)


def _methods(request: Request) -> str:
    """All that the path of the request takes: the router's own error tells those of the first route that fits."""
    paths = request.app.openapi()["paths"].items()
    fitting = [methods for path, methods in paths if compile_path(path)[0].match(request.url.path)]
    return ", ".join(sorted({method.upper() for methods in fitting for method in methods}))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody hears this answer; 499 is the usual mark for it."""
    return Response(status_code=499)


def install(app: FastAPI) -> None:
    """Give the app its protocols' error objects for everything that can go wrong."""
    app.add_exception_handler(SparkstralError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_error)
