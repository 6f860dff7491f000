"""`sparkstral inspect checkpoint | tokens`: what a folder holds, and what the model sees of a text or a request."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.cli import options
from sparkstral.cli.model_folder import resolve_model
from sparkstral.errors import ConfigError
from sparkstral.units import format_bytes


def tokens(
    text: Annotated[str | None, typer.Argument(help="Text, taken as text. Default: standard input.")] = None,
    model: Annotated[str, typer.Option(help="demo, the folder of a checkpoint, or a Hub id.")] = "demo",
    request: Annotated[
        Path | None, typer.Option(help="A chat request in OpenAI's form (JSON): show the whole prompt it becomes.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show token ids and pieces; control tokens stand out, so that injected ones would be seen."""
    if request is not None and text is not None:
        raise ConfigError("Give either a TEXT or --request, not both.")
    tokenizer = ChatTokenizer.load(resolve_model(model))
    if request is not None:
        token_ids = _render_request(request, tokenizer)
    else:
        token_ids = tuple(tokenizer.encode(text if text is not None else sys.stdin.read()))
    if as_json:
        pieces = [tokenizer.piece(token_id) for token_id in token_ids]
        print(json.dumps({"count": len(token_ids), "ids": token_ids, "pieces": pieces}, ensure_ascii=False))
        return
    table = Table("position", "id", "piece", title=f"{len(token_ids):,} tokens")
    for position, token_id in enumerate(token_ids):
        style = "bold magenta" if tokenizer.is_control(token_id) else ""
        table.add_row(str(position), str(token_id), _visible(tokenizer.piece(token_id)), style=style)
    Console().print(table)
