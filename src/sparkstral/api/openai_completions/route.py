"""The door of POST /v1/completions: body → requests → events → answers, streamed or whole."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sparkstral.api import openapi
from sparkstral.api.exchange import Door, folded, stream
from sparkstral.api.openai_chat.response import CompletionHead
from sparkstral.api.openai_completions.request import to_text_requests
from sparkstral.api.openai_completions.response import TextChunkWriter, completion
from sparkstral.api.openai_completions.schema import CompletionRequest
from sparkstral.serving.generate import variants


def completions_router(door: Door) -> APIRouter:
    router = APIRouter(tags=["completions"])

    @router.post("/v1/completions", openapi_extra=openapi.body(CompletionRequest))
    async def create_completion(request: Request) -> Response:
        """What follows a text, or each of several. No chat format: control tokens come from token ids alone."""
        with door.generator.admission.slot():
            received = await door.read(request, CompletionRequest, "cmpl-")
            wire, headers = received.wire, received.headers
            text_requests = await received.translated(lambda: to_text_requests(wire))
            num_variants = wire.n or 1
            prepared = [
                variant
                for i, text_request in enumerate(text_requests)
                for variant in variants(await door.prepare_text(received, text_request, i), num_variants)
            ]
        head = CompletionHead(received.id, int(time.time()), door.config.served_model_name)
        answers = door.generator.run_all(prepared)
        if not wire.stream:
            texts = await folded(answers, request, len(prepared))
            return JSONResponse(
                completion(head, texts, num_variants, with_logprobs=wire.logprobs is not None), headers=headers
            )
        writer = TextChunkWriter(
            head, include_usage=wire.includes_usage, number=len(prepared), num_variants=num_variants
        )
        return await stream(answers, request, writer.write, headers, door.config)

    return router
