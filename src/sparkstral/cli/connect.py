"""`sparkstral connect`: settings for a client, filled in from the server that is running."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import httpx
import typer

from sparkstral.cli import options
from sparkstral.cli.clients import CLIENTS
from sparkstral.config import DEFAULT_HOST, DEFAULT_PORT
from sparkstral.errors import ConfigError, SparkstralError

NO_KEY = "none"  # many clients insist on a key, and the server does not mind


def connect(
    client: Annotated[str | None, typer.Argument(help="Without it: the list.", metavar="[CLIENT]")] = None,
    url: Annotated[
        str, typer.Option(help="The server's address, as the client reaches it.")
    ] = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
    api_key: Annotated[str | None, typer.Option(help="A key of the server, where it asks for one.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print settings with which CLIENT uses the running server."""
    if client is None:
        names = {name: settings.title for name, settings in CLIENTS.items()}
        print(json.dumps(names) if as_json else "\n".join(f"{name:<12} {title}" for name, title in names.items()))
        return
    if client not in CLIENTS:
        raise ConfigError(f"{client!r} is not a client that is known here: {', '.join(CLIENTS)}.")
    url = url.rstrip("/").removesuffix("/v1")
    model, length = _served_model(url, api_key)
    settings = CLIENTS[client]
    key = api_key or NO_KEY
    text, place = settings.filled(url, model, length, key), settings.placed(key)
    if as_json:
        print(json.dumps({"client": client, "place": place, "text": text, "note": settings.note}))
        return
    print(f"{settings.title}: {place}", file=sys.stderr)
    if settings.note:
        print(settings.note, file=sys.stderr)
    print(file=sys.stderr)
    print(text, end="")


def _served_model(url: str, api_key: str | None) -> tuple[str, int]:
    """The served name and the length of its context. Raises SparkstralError with the server's own reason."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=10)
        body = answer.json()
        if answer.status_code == 200:
            (card,) = body["data"]
            return card["id"], card["max_model_len"]
        reason = body["error"]["message"]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SparkstralError(
            f"No server answers on {url} ({error}). Start one with `sparkstral serve`, or name another with --url."
        ) from None
    except (ValueError, KeyError, TypeError):
        reason = "this is no server of sparkstral's"
    raise SparkstralError(f"{url} does not tell its model: {reason}")
