"""The door of POST /v1/chat/completions: body → request → events → answer, streamed or whole."""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sparkstral.api import openapi
from sparkstral.api.exchange import Door, stream, told, whole
from sparkstral.api.openai_chat.request import to_chat_request
from sparkstral.api.openai_chat.response import ChunkWriter, CompletionHead, completion
from sparkstral.api.openai_chat.schema import ChatCompletionRequest
from sparkstral.api.urgency import urgency
from sparkstral.serving.generate import variants


def chat_router(door: Door) -> APIRouter:
    router = APIRouter(tags=["chat"])

    @router.post("/v1/chat/completions", openapi_extra=openapi.body(ChatCompletionRequest))
    async def create_chat_completion(request: Request) -> Response:
        """One answer to a list of messages. The response headers tell what was made of the request:
        x-request-id; x-sparkstral-reasoning-effort, the setting that the model got; x-sparkstral-ignored,
        fields that changed nothing; x-sparkstral-repairs, what was changed in the message list."""
        request_id = f"chatcmpl-{uuid.uuid4().hex}"
        head = CompletionHead(request_id, int(time.time()), door.config.served_model_name)
        with door.generator.admission.slot():
            wire = await door.read(request, ChatCompletionRequest)
            chat_request = to_chat_request(wire)
            prepared = await door.generator.prepare(chat_request, request_id, urgency(request, wire))
        headers = {
            "x-request-id": request_id,
            "x-sparkstral-reasoning-effort": chat_request.reasoning_effort,
            **told("x-sparkstral-ignored", wire.without_effect()),
            **told("x-sparkstral-repairs", prepared.repairs),
        }
        number = wire.n or 1
        answers = door.generator.run_all(variants(prepared, number))
        if not wire.stream:
            folded = await whole(answers, request, number)
            return JSONResponse(completion(head, folded, with_logprobs=wire.logprobs is True), headers=headers)
        writer = ChunkWriter(head, include_usage=wire.includes_usage, number=number)
        return await stream(answers, request, writer.write, headers, door.config)

    return router
