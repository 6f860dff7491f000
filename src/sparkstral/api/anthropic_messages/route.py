"""The door of POST /v1/messages and /v1/messages/count_tokens: body → request → events → answer, streamed or whole."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sparkstral.api import openapi
from sparkstral.api.anthropic_messages.request import to_chat_request
from sparkstral.api.anthropic_messages.response import MessageBuilder, MessageHead
from sparkstral.api.anthropic_messages.schema import CountTokensRequest, MessagesRequest
from sparkstral.api.exchange import Door, stream, told, whole


def messages_router(door: Door) -> APIRouter:
    router = APIRouter(tags=["messages"])

    @router.post("/v1/messages", openapi_extra=openapi.body(MessagesRequest))
    async def create_message(request: Request) -> Response:
        """One answer in Anthropic's protocol. The response headers tell what was made of the request, as those of
        chat completions do."""
        with door.generator.admission.slot():
            received = await door.read(request, MessagesRequest, "msg_")
            wire, headers = received.wire, received.headers
            prepared = await door.prepare(received, await received.translated(lambda: to_chat_request(wire)))
        num_prompt_tokens = len(prepared.generation.prompt_token_ids)
        head = MessageHead(received.id, door.config.served_model_name, num_prompt_tokens, wire.max_tokens)
        builder = MessageBuilder(head)
        answers = door.generator.run_all([prepared])
        if wire.stream:
            return await stream(answers, request, lambda numbered: builder.write(numbered[1]), headers, door.config)
        await whole(answers, request, lambda numbered: builder.feed(numbered[1]))
        return JSONResponse(builder.message, headers=headers)

    @router.post("/v1/messages/count_tokens", openapi_extra=openapi.body(CountTokensRequest))
    async def count_tokens(request: Request) -> Response:
        """How many tokens the prompt of these messages has."""
        with door.generator.admission.slot():
            received = await door.read(request, CountTokensRequest, "req_")
            rendered = await door.generator.render(await received.translated(lambda: to_chat_request(received.wire)))
        headers = received.headers | told("x-sparkstral-repairs", rendered.repairs)
        return JSONResponse({"input_tokens": len(rendered.prompt.token_ids)}, headers=headers)

    return router
