"""The door of POST /v1/chat/completions: body → request → events → answer, streamed or whole."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sparkstral.api import openapi
from sparkstral.api.body import read_json, validate
from sparkstral.api.disconnect import until_disconnect
from sparkstral.api.errors import FailedError
from sparkstral.api.models import require_served
from sparkstral.api.openai_chat.request import to_chat_request
from sparkstral.api.openai_chat.response import ChunkWriter, CompletionHead, completion
from sparkstral.api.openai_chat.schema import ChatCompletionRequest
from sparkstral.api.sse import EventStream, with_pauses
from sparkstral.chat.fold import Fold, FoldedMessage
from sparkstral.config import ServerConfig
from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import require_ready
from sparkstral.serving.generate import Generator
from sparkstral.types import Failed, OutputEvent

MAX_TOLD_FIELDS = 20  # a header must stay short


def chat_router(client: EngineClient, generator: Generator, config: ServerConfig) -> APIRouter:
    router = APIRouter(tags=["chat"])

    body_schema = {"$ref": openapi.component(ChatCompletionRequest)}
    request_body = {"required": True, "content": {"application/json": {"schema": body_schema}}}

    @router.post("/v1/chat/completions", openapi_extra={"requestBody": request_body})
    async def create_chat_completion(request: Request) -> Response:
        """One answer to a list of messages. The response headers tell what was made of the request:
        x-request-id; x-sparkstral-reasoning-effort, the setting that the model got; x-sparkstral-ignored,
        fields that changed nothing; x-sparkstral-repairs, what was changed in the message list."""
        request_id = f"chatcmpl-{uuid.uuid4().hex}"
        head = CompletionHead(request_id, int(time.time()), config.served_model_name)
        with generator.admission.slot():
            body = await read_json(request, config)
            require_ready(client.status())
            wire = validate(ChatCompletionRequest, body)
            require_served(wire.model or config.served_model_name, config.served_model_name)
            chat_request = to_chat_request(wire)
            prepared = await generator.prepare(chat_request, request_id)
        headers = {
            "x-request-id": request_id,
            "x-sparkstral-reasoning-effort": chat_request.reasoning_effort,
            **_told("x-sparkstral-ignored", wire.without_effect()),
            **_told("x-sparkstral-repairs", prepared.repairs),
        }
        events = generator.run(prepared)
        if not wire.stream:
            answer = await until_disconnect(_fold(events), request.receive)
            return JSONResponse(completion(head, answer), headers=headers)
        # The status goes out with the first event, so that what fails before it still has its own status, unless a long
        # prompt makes the client wait: then it is told early that it is served, and by a failed event if it is not.
        stream = with_pauses(events, config.keep_alive_s)
        first = await until_disconnect(anext(stream), request.receive)
        if isinstance(first, Failed):
            await stream.aclose()
            raise FailedError(first.failure)
        include_usage = wire.stream_options is not None and wire.stream_options.include_usage is True
        writer = ChunkWriter(head, include_usage=include_usage)
        return EventStream[OutputEvent](first, stream, writer.write, headers, config.reader_timeout_s)

    return router


async def _fold(events: AsyncGenerator[OutputEvent, None]) -> FoldedMessage:
    fold = Fold()
    async with aclosing(events):
        async for event in events:
            fold.add([event])
    return fold.message()


def _told(header: str, names: Iterable[str]) -> dict[str, str]:
    """A header that lists `names` once each, or none. A client's name that no header may hold is left out."""
    plain = [name for name in dict.fromkeys(names) if re.fullmatch(r"[\w.\[\]-]{1,100}", name, re.ASCII)]
    return {header: ", ".join(plain[:MAX_TOLD_FIELDS])} if plain else {}
