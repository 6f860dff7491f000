"""The doors of /v1/responses: body → request → events → answer, streamed or whole; and the answers that are kept."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from sparkstral.api import openapi
from sparkstral.api.errors import UnknownResponseError
from sparkstral.api.exchange import Answers, Door, stream, whole
from sparkstral.api.openai_responses.request import resolve_references, to_chat_request, to_turns
from sparkstral.api.openai_responses.response import ResponseBuilder, response_head
from sparkstral.api.openai_responses.schema import ResponsesRequest
from sparkstral.api.openai_responses.store import ResponseStore, StoredResponse
from sparkstral.api.openai_responses.tools import Toolbox, toolbox
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, ChatRequest, Failed, Finished, OutputEvent


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

    def history_of(wire: ResponsesRequest) -> tuple[ChatMessage, ...]:
        """What was said before; items that `wire` refers to are put into it."""
        resolve_references(wire, find_item)
        previous = wire.previous_response_id
        return () if previous is None else find(previous, "previous_response_id").messages

    def understood(wire: ResponsesRequest, history: tuple[ChatMessage, ...]) -> tuple[ChatRequest, Toolbox]:
        tools = toolbox(wire)
        return to_chat_request(wire, history, tools.tools), tools

    @router.post("", openapi_extra=openapi.body(ResponsesRequest))
    async def create_response(request: Request) -> Response:
        """One answer in the protocol of responses. The response headers tell what was made of the request, as those
        of chat completions do."""
        with door.generator.admission.slot():
            received = await door.read(request, ResponsesRequest, "resp_")
            wire, headers, response_id = received.wire, received.headers, received.id
            history = history_of(wire)
            chat_request, tools = await received.translated(lambda: understood(wire, history))
            prepared = await door.prepare(received, chat_request)
        sampling = prepared.generation.sampling
        model = door.config.served_model_name
        head = response_head(wire, response_id, model, sampling.temperature, sampling.top_p)
        builder = ResponseBuilder(head, wire, tools.by_name)

        def keep() -> None:
            """As far as it has come: what is kept can be asked for from its first event on."""
            if wire.store is not False:
                store.add(builder.response, (*history, *to_turns(wire.input), *builder.messages))

        def write(numbered: tuple[int, OutputEvent]) -> bytes:
            chunk = builder.write(numbered[1])
            if isinstance(numbered[1], Finished | Failed):
                keep()
            return chunk

        async def followed(answers: Answers) -> Answers:
            last: OutputEvent | None = None
            try:
                async with aclosing(answers):
                    async for numbered in answers:
                        if last is None:
                            keep()
                        last = numbered[1]
                        yield numbered
            finally:
                if last is not None and builder.response["status"] == "in_progress":
                    builder.give_up(last.failure if isinstance(last, Failed) else None)
                    keep()

        answers = followed(door.generator.run_all([prepared]))
        if wire.stream:
            return await stream(answers, request, write, headers, door.config)
        await whole(answers, request, write)
        return JSONResponse(builder.response, headers=headers)

    @router.post("/input_tokens", openapi_extra=openapi.body(ResponsesRequest))
    async def count_input_tokens(request: Request) -> JSONResponse:
        """How many tokens the prompt of a response would have."""
        with door.generator.admission.slot():
            received = await door.read(request, ResponsesRequest, "req_")
            history = history_of(received.wire)
            chat_request = await received.translated(lambda: understood(received.wire, history)[0])
            rendered = await door.generator.render(chat_request)
        counted = {"object": "response.input_tokens", "input_tokens": len(rendered.prompt.token_ids)}
        return JSONResponse(counted, headers=received.headers)

    @router.post("/compact", include_in_schema=False)
    async def compact() -> JSONResponse:
        raise HTTPException(404)  # without this its path would be that of a response

    @router.get("/{response_id}")
    async def get_response(response_id: str, stream: str = "false") -> JSONResponse:
        """A response that is still kept, as far as it has come."""
        if stream.lower() not in ("false", "0"):
            raise RequestError("`stream`: a response that is kept is not streamed again; ask for it whole.", "stream")
        return JSONResponse(find(response_id).response)

    @router.delete("/{response_id}")
    async def delete_response(response_id: str) -> JSONResponse:
        """Forget a response."""
        find(response_id)
        store.delete(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    return router
