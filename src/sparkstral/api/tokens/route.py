"""The doors of POST /tokenize, /detokenize and /render. Nothing is generated; the engine is asked for its length."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sparkstral.api import openapi
from sparkstral.api.efforts import EFFORTS
from sparkstral.api.exchange import Door, told
from sparkstral.api.openai_chat.request import to_chat_request, to_messages, to_tools
from sparkstral.api.openai_chat.schema import ChatCompletionRequest
from sparkstral.api.tokens.schema import DetokenizeRequest, TokenizeRequest
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.errors import RequestError
from sparkstral.types import ChatRequest


def tokens_router(door: Door, tokenizer: ChatTokenizer) -> APIRouter:
    router = APIRouter(tags=["tokens"])

    def counted(token_ids: Sequence[int], **more: Any) -> dict[str, Any]:
        max_model_len = door.client.info.max_model_len
        return {"count": len(token_ids), "max_model_len": max_model_len, "tokens": list(token_ids), **more}

    @router.post("/tokenize", openapi_extra=openapi.body(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of the prompt that messages make."""
        with door.generator.admission.slot():
            received = await door.read(request, TokenizeRequest, "req_")
            wire, headers = received.wire, received.headers
            if (wire.prompt is None) == (wire.messages is None):
                raise RequestError("Send either `prompt` or `messages`.", "prompt")
            token_ids: Sequence[int]
            if wire.prompt is not None:
                with_begin = wire.add_special_tokens is not False
                token_ids = await asyncio.to_thread(tokenizer.encode, wire.prompt, with_begin=with_begin)
            else:
                chat_request = ChatRequest(
                    to_messages(wire.messages or ()),
                    to_tools(wire.tools),
                    reasoning_effort=EFFORTS[wire.reasoning_effort or "none"],
                )
                rendered = await door.generator.render(chat_request)
                token_ids = rendered.prompt.token_ids
                headers |= told("x-sparkstral-repairs", rendered.repairs)

            def answer() -> Response:
                is_spelled = wire.return_token_strs
                strings = [tokenizer.spell([token_id]) for token_id in token_ids] if is_spelled else None
                return JSONResponse(counted(token_ids, token_strs=strings), headers=headers)

            return await asyncio.to_thread(answer)  # a long text's tokens are many

    @router.post("/detokenize", openapi_extra=openapi.body(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """The text of token ids; control tokens are spelled."""
        with door.generator.admission.slot():
            received = await door.read(request, DetokenizeRequest, "req_")
            wire = received.wire
            if wire.tokens and max(wire.tokens) >= tokenizer.vocab_size:
                raise RequestError(
                    f"`tokens` holds {max(wire.tokens)}; this model's are 0 to {tokenizer.vocab_size - 1:,}.", "tokens"
                )
            text = await asyncio.to_thread(tokenizer.spell, wire.tokens)
        return JSONResponse({"prompt": text}, headers=received.headers)

    @router.post("/render", openapi_extra=openapi.body(ChatCompletionRequest))
    async def render(request: Request) -> Response:
        """What the model sees of a chat completions body: the prompt with its control tokens spelled, its token ids,
        and what was repaired."""
        with door.generator.admission.slot():
            received = await door.read(request, ChatCompletionRequest, "req_")
            wire = received.wire
            chat_request = await received.translated(lambda: to_chat_request(wire))
            rendered = await door.generator.render(chat_request)

            def answer() -> Response:
                more = {
                    "prompt": tokenizer.spell(rendered.prompt.token_ids),
                    "reasoning_effort": chat_request.reasoning_effort,
                    "repairs": list(rendered.repairs),
                    "ignored": list(dict.fromkeys(wire.without_effect())),
                }
                return JSONResponse(counted(rendered.prompt.token_ids, **more), headers=received.headers)

            return await asyncio.to_thread(answer)

    return router
