from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import httpx
import openai
import pytest

from sparkstral.api.app import create_app
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import ServerConfig
from tests.support.chat_cases import spell
from tests.support.fake_engine import FakeEngine, written
from tests.support.server import served
from tests.support.tekken import v15_tokenizer

MODEL = ServerConfig().served_model_name


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    return v15_tokenizer()


class Doors:
    """Ways into an application over a fake engine."""

    def __init__(self, tokenizer: ChatTokenizer, stack: ExitStack) -> None:
        self.tokenizer = tokenizer
        self._stack = stack

    def close(self) -> None:
        """Shuts what was opened."""
        self._stack.close()

    def engine(self, *pieces: str) -> FakeEngine:
        """An engine that answers every request with `pieces`."""
        token_ids = written(self.tokenizer, *pieces)
        return FakeEngine(lambda request: token_ids)

    def spelled(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens spelled."""
        return spell(token_ids, self.tokenizer)

    def url(self, engine: FakeEngine, config: ServerConfig | None = None) -> str:
        app = create_app(engine, self.tokenizer, config or ServerConfig())
        return self._stack.enter_context(served(app))

    def sdk(self, engine: FakeEngine, config: ServerConfig | None = None) -> openai.OpenAI:
        """The official client, over a real socket."""
        client = openai.OpenAI(base_url=f"{self.url(engine, config)}/v1", api_key="none", max_retries=0)
        return self._stack.enter_context(client)

    def asgi(self, engine: FakeEngine, config: ServerConfig | None = None) -> httpx.AsyncClient:
        """A plain client without a socket."""
        app = create_app(engine, self.tokenizer, config or ServerConfig())
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.fixture
def doors(tokenizer: ChatTokenizer) -> Iterator[Doors]:
    with ExitStack() as stack:
        yield Doors(tokenizer, stack)
