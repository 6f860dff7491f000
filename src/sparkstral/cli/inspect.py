"""`sparkstral inspect checkpoint | tokens`: what a folder holds, and what the model sees of a text or a request."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sparkstral.api.body import validate
from sparkstral.api.openai_chat.request import to_chat_request
from sparkstral.api.openai_chat.schema import ChatCompletionRequest
from sparkstral.chat.render import render
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.checkpoint.plan import plan_load
from sparkstral.checkpoint.summary import CheckpointSummary, summarize
from sparkstral.cli import options
from sparkstral.cli.model_folder import resolve_model
from sparkstral.cli.text import read_json_file, read_stdin, require_text
from sparkstral.errors import ConfigError
from sparkstral.units import format_bytes


def checkpoint(model: options.Model = "demo", as_json: options.AsJson = False) -> None:
    """Read the headers of MODEL: layout, files, tensors by class, and what is skipped and why. Loads no data."""
    summary = summarize(plan_load(resolve_model(model)))
    if as_json:
        print(json.dumps(dataclasses.asdict(summary), ensure_ascii=False, indent=1))
    else:
        _print_summary(summary)


def _print_summary(summary: CheckpointSummary) -> None:
    console = Console()
    index = f", index {summary.index_file}" if summary.index_file else ", no index"
    console.print(f"{summary.folder}\n{summary.layout} layout: {summary.config_file}{index}", highlight=False)
    table = Table("tensors of", "count", "parameters", "size", "stored as")
    for column in table.columns[1:4]:
        column.justify = "right"
    for each in summary.classes:
        stored_as = "skipped" if each.skipped_reason else f"{' '.join(each.forms)} ({', '.join(each.dtypes)})"
        numbers = (f"{each.num_tensors:,}", f"{each.num_parameters:,}", format_bytes(each.num_bytes))
        table.add_row(each.name, *numbers, stored_as)
    table.add_section()
    totals = (f"{summary.num_tensors:,}", f"{summary.num_parameters:,}", format_bytes(summary.num_bytes))
    table.add_row("all", *totals, f"{len(summary.files)} files")
    console.print(table)
    for each in summary.classes:
        if each.skipped_reason:
            console.print(f"{each.name} skipped: {each.skipped_reason}", highlight=False)
    config = dataclasses.asdict(summary.config)
    console.print(", ".join(f"{name} {value}" for name, value in config.items()), style="dim", highlight=False)


def tokens(
    text: Annotated[str | None, typer.Argument(help="Taken as plain text. Default: standard input.")] = None,
    model: Annotated[str, typer.Option(help="demo, the folder of a checkpoint, or a Hub id.")] = "demo",
    request: Annotated[
        Path | None, typer.Option(help="A chat request in OpenAI's form (JSON): show the prompt that it becomes.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show token ids and pieces; control tokens stand out, so that injected ones would be seen."""
    if request is not None and text is not None:
        raise ConfigError("Give either a TEXT or --request, not both.")
    tokenizer = ChatTokenizer.load(resolve_model(model))
    if request is not None:
        token_ids = _render(request, tokenizer)
    else:
        token_ids = tuple(tokenizer.encode(read_stdin() if text is None else require_text(text, "TEXT")))
    pieces = [tokenizer.piece(token_id) for token_id in token_ids]
    if as_json:
        print(json.dumps({"count": len(token_ids), "ids": token_ids, "pieces": pieces}, ensure_ascii=False))
        return
    table = Table("position", "id", "piece", title=f"{len(token_ids):,} tokens")
    for position, (token_id, piece) in enumerate(zip(token_ids, pieces, strict=True)):
        # repr shows white space and line ends; a control token is shown as its name
        shown = piece if tokenizer.is_control(token_id) else repr(piece)
        style = "bold magenta" if tokenizer.is_control(token_id) else ""
        table.add_row(str(position), str(token_id), shown.replace("[", r"\["), style=style)
    Console().print(table)


def _render(request: Path, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    body = read_json_file(request, "--request")
    chat_request = to_chat_request(validate(ChatCompletionRequest, body))
    return render(chat_request, tokenizer).prompt.token_ids
