"""The doors of /v1/responses: body → request → events → answer, streamed or whole; and the answers that are kept."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sparkstral.api import openapi
from sparkstral.api.disconnect import until_disconnect
from sparkstral.api.errors import FailedError, UnknownResponseError
from sparkstral.api.exchange import Door, stream, told
from sparkstral.api.openai_responses.request import left_out, resolve_references, to_chat_request, to_turns
from sparkstral.api.openai_responses.response import ResponseBuilder, response_head
from sparkstral.api.openai_responses.schema import ResponsesRequest
from sparkstral.api.openai_responses.store import ResponseStore, StoredResponse
from sparkstral.api.openai_responses.tools import toolbox
from sparkstral.api.urgency import urgency
from sparkstral.types import Failed, OutputEvent


def responses_router(door: Door) -> APIRouter:
    router = APIRouter(prefix="/v1/responses", tags=["responses"])
    store = ResponseStore()

    def find(response_id: str, param: str | None = None) -> StoredResponse:
        stored = store.get(response_id)
        if stored is None:
            raise UnknownResponseError(
                f"There is no response {response_id[:100]!r} here. Responses are kept in memory, the latest ones, and "
                "not beyond a restart. Send the whole talk as input.",
                param,
            )
        return stored

    def find_item(item_id: str, param: str) -> dict[str, Any]:
        item = store.item(item_id)
        if item is None:
            raise UnknownResponseError(
                f"There is no item {item_id[:100]!r} here. The items of responses are kept in memory, the latest ones, "
                "and not beyond a restart. Send the item itself.",
                param,
            )
        return item

    @router.post("", openapi_extra=openapi.body(ResponsesRequest))
    async def create_response(request: Request) -> Response:
        """One answer in the protocol of responses. The response headers tell what was made of the request, as those
        of chat completions do."""
        response_id = f"resp_{uuid.uuid4().hex}"
        with door.generator.admission.slot():
            wire = await door.read(request, ResponsesRequest)
            previous = wire.previous_response_id
            history = () if previous is None else find(previous, "previous_response_id").messages
            resolve_references(wire, find_item)
            tools = toolbox(wire)
            chat_request = to_chat_request(wire, history, tools.tools.values())
            prepared = await door.generator.prepare(chat_request, response_id, urgency(request, wire))
        headers = {
            "x-request-id": response_id,
            "x-sparkstral-reasoning-effort": chat_request.reasoning_effort,
            **told("x-sparkstral-ignored", (*wire.without_effect(), *tools.left_out, *left_out(wire))),
            **told("x-sparkstral-repairs", prepared.repairs),
        }
        sampling = prepared.generation.sampling
        model = door.config.served_model_name
        head = response_head(wire, response_id, model, sampling.temperature, sampling.top_p)
        builder = ResponseBuilder(head, wire, tools.by_plain_name)

        def write(numbered: tuple[int, OutputEvent]) -> bytes:
            chunk = builder.write(numbered[1])
            if builder.messages and wire.store is not False:
                store.add(builder.response, (*history, *to_turns(wire.input), *builder.messages))
            return chunk

        answers = door.generator.run_all([prepared])
        if wire.stream:
            return await stream(answers, request, write, headers, door.config)
        await until_disconnect(_exhaust(answers, write), request.receive)
        return JSONResponse(builder.response, headers=headers)

    @router.get("/{response_id}")
    async def get_response(response_id: str) -> JSONResponse:
        """A response that is still kept."""
        return JSONResponse(find(response_id).response)

    @router.delete("/{response_id}")
    async def delete_response(response_id: str) -> JSONResponse:
        """Forget a response."""
        find(response_id)
        store.delete(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    return router


async def _exhaust(
    answers: AsyncGenerator[tuple[int, OutputEvent], None], write: Callable[[tuple[int, OutputEvent]], bytes]
) -> None:
    """Follow all events. Raises FailedError when the answer does not come to its end."""
    async with aclosing(answers):
        async for numbered in answers:
            if isinstance(numbered[1], Failed):
                raise FailedError(numbered[1].failure)
            write(numbered)
