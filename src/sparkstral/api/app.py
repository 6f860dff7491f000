"""The HTTP application: its routes, its errors, and the engine's life inside its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from sparkstral.api import errors, openapi
from sparkstral.api.anthropic_messages.route import messages_router
from sparkstral.api.anthropic_messages.schema import CountTokensRequest, MessagesRequest
from sparkstral.api.door import LoopbackNamesOnly, OriginForm, is_loopback
from sparkstral.api.exchange import Door
from sparkstral.api.health import health_router
from sparkstral.api.keys import KeysOnly
from sparkstral.api.metrics import Metrics, metrics_router
from sparkstral.api.models import models_router
from sparkstral.api.openai_chat.route import chat_router
from sparkstral.api.openai_chat.schema import ChatCompletionRequest
from sparkstral.api.openai_completions.route import completions_router
from sparkstral.api.openai_completions.schema import CompletionRequest
from sparkstral.api.openai_responses.route import responses_router
from sparkstral.api.openai_responses.schema import ResponsesRequest
from sparkstral.api.tokens.route import tokens_router
from sparkstral.api.tokens.schema import DetokenizeRequest, TokenizeRequest
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import ServerConfig
from sparkstral.engine.client import EngineClient
from sparkstral.serving.admission import Admission
from sparkstral.serving.generate import Generator

BODIES = (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    MessagesRequest,
    CountTokensRequest,
    TokenizeRequest,
    DetokenizeRequest,
)


def create_app(client: EngineClient, tokenizer: ChatTokenizer, config: ServerConfig) -> FastAPI:
    """The application over `client`.

    Its start begins to load the engine and does not wait for it; until the engine is ready, /health and the
    endpoints answer 503 with the phase. Its shutdown stops the engine.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        await client.start()
        try:
            yield
        finally:
            await client.stop()

    # No page of documentation: FastAPI's loads its scripts from elsewhere, and is blank without the internet.
    app = FastAPI(title="sparkstral", lifespan=lifespan, docs_url=None, redoc_url=None)
    # The last one added is asked first.
    if config.api_keys:
        app.add_middleware(KeysOnly, keys=config.api_keys)
    if is_loopback(config.host):
        app.add_middleware(LoopbackNamesOnly, host=config.host)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    app.add_middleware(OriginForm)
    errors.install(app)
    openapi.install(app, *BODIES)
    admission = Admission(config.max_in_flight)
    metrics = Metrics(client, admission, config.served_model_name)
    app.include_router(health_router(client))
    app.include_router(metrics_router(metrics))
    app.include_router(models_router(client, config.served_model_name))
    door = Door(client, Generator(client, tokenizer, config, admission, metrics), config)
    app.include_router(chat_router(door))
    app.include_router(completions_router(door))
    app.include_router(responses_router(door))
    app.include_router(messages_router(door))
    app.include_router(tokens_router(door, tokenizer))
    return app
