"""What all endpoints that generate do alike: from the request's bytes to a checked wire object, and from events to a
whole answer or to a stream that has begun well.

Must not know a protocol's wire form.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from sparkstral.api.body import read_json, validate
from sparkstral.api.disconnect import until_disconnect
from sparkstral.api.errors import FailedError
from sparkstral.api.models import require_served
from sparkstral.api.sse import EventStream, with_pauses
from sparkstral.api.wire import Wire
from sparkstral.chat.fold import Fold, FoldedMessage
from sparkstral.config import ServerConfig
from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import require_ready
from sparkstral.serving.generate import Generator
from sparkstral.types import Failed, OutputEvent

W = TypeVar("W", bound=Wire)

MAX_TOLD_FIELDS = 20  # a header must stay short
Answers = AsyncGenerator[tuple[int, OutputEvent], None]  # events of one or several answers, each with its number


@dataclass(frozen=True, slots=True)
class Door:
    """What stands behind every endpoint of the application."""

    client: EngineClient
    generator: Generator
    config: ServerConfig

    async def read(self, request: Request, kind: type[W]) -> W:
        """The body as `kind`, for the model that is served. Raises what api/errors.py describes."""
        body = await read_json(request, self.config)
        require_ready(self.client.status())
        wire = validate(kind, body)
        model = getattr(wire, "model", None)
        if model is not None:
            require_served(model, self.config.served_model_name)
        return wire


def told(header: str, names: Iterable[str]) -> dict[str, str]:
    """A header that lists `names` once each, or none. A client's name that no header may hold is left out."""
    plain = [name for name in dict.fromkeys(names) if re.fullmatch(r"[\w.\[\]-]{1,100}", name, re.ASCII)]
    return {header: ", ".join(plain[:MAX_TOLD_FIELDS])} if plain else {}


async def whole(answers: Answers, request: Request, number: int = 1) -> list[FoldedMessage]:
    """All `number` answers, folded. Raises FailedError for the first that fails, and ClientDisconnect."""
    return await until_disconnect(_fold(answers, number), request.receive)


async def _fold(answers: Answers, number: int) -> list[FoldedMessage]:
    folds = [Fold() for _ in range(number)]
    async with aclosing(answers):
        async for index, event in answers:
            folds[index].add([event])
            if isinstance(event, Failed):
                raise FailedError(event.failure)
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
