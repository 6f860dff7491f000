"""What all endpoints do alike: from the request's bytes to a checked wire object and to the headers of its answer, and
from events to a whole answer or to a stream that has begun well.

Must not know a protocol's wire form.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastapi import Request

from sparkstral.api.body import parse, read_body, validate
from sparkstral.api.disconnect import until_disconnect
from sparkstral.api.errors import FailedError, request_ids
from sparkstral.api.models import require_served
from sparkstral.api.sse import EventStream, with_pauses
from sparkstral.api.urgency import urgency
from sparkstral.api.wire import Wire
from sparkstral.chat.fold import Fold, FoldedMessage
from sparkstral.config import ServerConfig
from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import require_ready
from sparkstral.serving.generate import Generator, PreparedRequest
from sparkstral.types import ChatRequest, Failed, OutputEvent, TextRequest, Urgency

T = TypeVar("T")
W = TypeVar("W", bound=Wire)

MAX_TOLD_FIELDS = 20  # a header must stay short
INLINE_BYTES = 256 << 10  # up to here a body is read in milliseconds; larger ones must not hold up other streams
Answers = AsyncGenerator[tuple[int, OutputEvent], None]  # events of one or several answers, each with its number
Add = Callable[[tuple[int, OutputEvent]], object]


@dataclass(frozen=True, slots=True)
class Received(Generic[W]):
    """A request that was read. `headers` are those of its answer, as far as they are known already."""

    id: str
    wire: W
    headers: dict[str, str]
    urgency: Urgency
    arrived_s: float  # of time.monotonic, before its body was read
    is_large: bool

    async def translated(self, translate: Callable[[], T]) -> T:
        """The result of `translate`, which reads the wire; in a thread if that takes long."""
        return await asyncio.to_thread(translate) if self.is_large else translate()


@dataclass(frozen=True, slots=True)
class Door:
    """What stands behind every endpoint of the application."""

    client: EngineClient
    generator: Generator
    config: ServerConfig

    async def read(self, request: Request, kind: type[W], id_prefix: str) -> Received[W]:
        """The body as `kind`, for the model that is served; its id begins with `id_prefix`. Raises what api/errors.py
        describes."""
        arrived_s = time.monotonic()
        headers = request_ids(request.scope, id_prefix)
        body = await read_body(request, self.config)
        require_ready(self.client.status())
        is_large = len(body) > INLINE_BYTES
        wire, ignored = await asyncio.to_thread(_understood, body, kind) if is_large else _understood(body, kind)
        model = getattr(wire, "model", None)
        if model is not None:
            require_served(model, self.config.served_model_name)
        headers |= told("x-sparkstral-ignored", ignored)
        return Received(headers["x-request-id"], wire, headers, urgency(request, wire), arrived_s, is_large)

    async def prepare(self, received: Received[W], request: ChatRequest) -> PreparedRequest:
        """`request`, ready to be answered; the headers tell what was made of it."""
        prepared = await self.generator.prepare(request, received.id, received.urgency, received.arrived_s)
        received.headers["x-sparkstral-reasoning-effort"] = request.reasoning_effort
        received.headers.update(told("x-sparkstral-repairs", prepared.repairs))
        received.headers.update(told("x-sparkstral-not-enforced", prepared.not_enforced))
        return prepared

    async def prepare_text(self, received: Received[W], request: TextRequest, number: int) -> PreparedRequest:
        """The same for one of several texts."""
        request_id = f"{received.id}-{number}"
        return await self.generator.prepare_text(request, request_id, received.urgency, received.arrived_s)


def _understood(body: bytes, kind: type[W]) -> tuple[W, list[str]]:
    """The wire object, and the paths of what changes nothing in it."""
    wire = validate(kind, parse(body))
    return wire, list(dict.fromkeys(wire.without_effect()))


def told(header: str, names: Iterable[str]) -> dict[str, str]:
    """A header that lists `names` once each and counts those that are too many or that no header may hold; or none."""
    different = list(dict.fromkeys(names))
    plain = [name for name in different if re.fullmatch(r"[\w.$\[\]-]{1,100}", name, re.ASCII)][:MAX_TOLD_FIELDS]
    num_more = len(different) - len(plain)
    more = [f"and {num_more} more" if plain else f"{num_more} fields"] if num_more else []
    return {header: ", ".join([*plain, *more])} if different else {}


async def whole(answers: Answers, request: Request, add: Add) -> None:
    """Hand all events to `add`. Raises FailedError for the first answer that fails, and ClientDisconnect."""

    async def follow() -> None:
        async with aclosing(answers):
            async for numbered in answers:
                if isinstance(numbered[1], Failed):
                    raise FailedError(numbered[1].failure)
                add(numbered)

    await until_disconnect(follow(), request.receive)


async def folded(answers: Answers, request: Request, number: int) -> list[FoldedMessage]:
    """All `number` answers as messages, otherwise as `whole`."""
    folds = [Fold() for _ in range(number)]
    await whole(answers, request, lambda numbered: folds[numbered[0]].add([numbered[1]]))
    return [fold.message() for fold in folds]


async def stream(
    answers: Answers,
    request: Request,
    write: Callable[[tuple[int, OutputEvent]], bytes],
    headers: Mapping[str, str],
    config: ServerConfig,
) -> EventStream[tuple[int, OutputEvent]]:
    """The answers as server-sent events. The status goes out with the first event, so that what fails before it still
    has its own status (FailedError), unless a long prompt makes the client wait: then it is told early that it is
    served, and by a failed event if it is not."""
    paused = with_pauses(answers, config.keep_alive_s)
    first = await until_disconnect(anext(paused), request.receive)
    if first is not None and isinstance(first[1], Failed):
        await paused.aclose()
        raise FailedError(first[1].failure)
    return EventStream(first, paused, write, headers, config.reader_timeout_s)
