"""The door of POST /v1/messages and /v1/messages/count_tokens: body → request → events → answer, streamed or whole."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sparkstral.api import openapi
from sparkstral.api.anthropic_messages.request import to_chat_request
from sparkstral.api.anthropic_messages.response import MessageFold, MessageHead, MessageWriter
from sparkstral.api.anthropic_messages.schema import CountTokensRequest, MessagesRequest
from sparkstral.api.disconnect import until_disconnect
from sparkstral.api.exchange import Door, stream, told
from sparkstral.api.urgency import urgency
from sparkstral.errors import RequestError
from sparkstral.types import OutputEvent

# Where chat names a field of OpenAI's, this protocol has another for the same.
_NAMES = {".function.parameters": ".input_schema", ".function.name": ".name", "response_format": "output_config.format"}


def messages_router(door: Door) -> APIRouter:
    router = APIRouter(tags=["messages"])

    @router.post("/v1/messages", openapi_extra=openapi.body(MessagesRequest))
    async def create_message(request: Request) -> Response:
        """One answer in Anthropic's protocol. The response headers tell what was made of the request, as those of
        chat completions do."""
        request_id = f"msg_{uuid.uuid4().hex}"
        with door.generator.admission.slot():
            wire = await door.read(request, MessagesRequest)
            with _anthropic_names():
                translated = to_chat_request(wire)
                prepared = await door.generator.prepare(translated.request, request_id, urgency(request, wire))
        num_prompt_tokens = len(prepared.generation.prompt_token_ids)
        head = MessageHead(request_id, door.config.served_model_name, num_prompt_tokens, wire.max_tokens)
        headers = {
            "x-request-id": request_id,
            "request-id": request_id,
            "x-sparkstral-reasoning-effort": translated.request.reasoning_effort,
            **told("x-sparkstral-ignored", wire.without_effect()),
            **told("x-sparkstral-repairs", (*translated.repairs, *prepared.repairs)),
        }
        if not wire.stream:
            events = door.generator.run(prepared)
            return JSONResponse(await until_disconnect(_whole(events, head), request.receive), headers=headers)
        writer = MessageWriter(head)
        answers = door.generator.run_all([prepared])
        return await stream(answers, request, lambda event: writer.write(event[1]), headers, door.config)

    @router.post("/v1/messages/count_tokens", openapi_extra=openapi.body(CountTokensRequest))
    async def count_tokens(request: Request) -> Response:
        """How many tokens the prompt of these messages has."""
        with door.generator.admission.slot():
            wire = await door.read(request, CountTokensRequest)
            with _anthropic_names():
                translated = to_chat_request(wire)
                rendered = await door.generator.render(translated.request)
        headers = told("x-sparkstral-repairs", (*translated.repairs, *rendered.repairs))
        return JSONResponse({"input_tokens": len(rendered.prompt.token_ids)}, headers=headers)

    return router


async def _whole(events: AsyncGenerator[OutputEvent, None], head: MessageHead) -> dict[str, Any]:
    fold = MessageFold(head)
    async with aclosing(events):
        async for event in events:
            fold.add(event)
    return fold.message()


@contextmanager
def _anthropic_names() -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        for name, own_name in _NAMES.items():
            error.args = (str(error).replace(name, own_name),)
            error.param = error.param and error.param.replace(name, own_name)
        raise
