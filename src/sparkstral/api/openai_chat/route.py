"""The door of POST /v1/chat/completions: body → request → events → answer, streamed or whole."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sparkstral.api import openapi
from sparkstral.api.exchange import Door, folded, stream
from sparkstral.api.openai_chat.request import to_chat_request
from sparkstral.api.openai_chat.response import ChunkWriter, CompletionHead, completion
from sparkstral.api.openai_chat.schema import ChatCompletionRequest
from sparkstral.serving.generate import variants


def chat_router(door: Door) -> APIRouter:
    router = APIRouter(tags=["chat"])

    @router.post("/v1/chat/completions", openapi_extra=openapi.body(ChatCompletionRequest))
    async def create_chat_completion(request: Request) -> Response:
        """One answer to a list of messages. The response headers tell what was made of the request:
        x-request-id; x-sparkstral-reasoning-effort, the setting that the model got; x-sparkstral-ignored,
        fields that changed nothing; x-sparkstral-repairs, what was changed in the message list."""
        with door.generator.admission.slot():
            received = await door.read(request, ChatCompletionRequest, "chatcmpl-")
            wire, headers = received.wire, received.headers
            chat_request = await received.translated(lambda: to_chat_request(wire))
            prepared = await door.prepare(received, chat_request)
        head = CompletionHead(received.id, int(time.time()), door.config.served_model_name)
        number = wire.n or 1
        answers = door.generator.run_all(variants(prepared, number))
        if not wire.stream:
            messages = await folded(answers, request, number)
            return JSONResponse(completion(head, messages, with_logprobs=wire.logprobs is True), headers=headers)
        writer = ChunkWriter(head, include_usage=wire.includes_usage, number=number)
        return await stream(answers, request, writer.write, headers, door.config)

    return router
