"""`sparkstral doctor`: what this machine has and lacks; the table, the exit code."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparkstral.checkpoint.locate import is_hub_id
from sparkstral.cli import options
from sparkstral.config import DEFAULT_HOST, DEFAULT_PORT
from sparkstral.demo.location import DEMO_CHECKPOINT
from sparkstral.doctor.check import Check, Verdict
from sparkstral.doctor.examine import Target, examine
from sparkstral.doctor.machine import Machine
from sparkstral.hub.download import cached
from sparkstral.hub.repository import revision_of

_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.BAD: "bold red", Verdict.ABSENT: "dim"}


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(help="demo, the folder of a checkpoint, or a Hub id, of which nothing is downloaded."),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Compare the files' hashes with what the Hub had.")] = False,
    host: Annotated[str, typer.Option(help="Where the server is to listen.")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(min=1, max=65535)] = DEFAULT_PORT,
    as_json: options.AsJson = False,
) -> None:
    """Look at everything that serving needs, and say what is wrong and what to do. Exit code 1 if anything is bad."""
    folder, missing = _folder(model)
    target = Target(folder, missing, deep, host, port)
    found = []
    console = Console()
    for check in examine(Machine(), target):
        found.append(check)
        if not as_json:
            _show(console, check)
    counts = {verdict.value: sum(check.verdict is verdict for check in found) for verdict in Verdict}
    is_bad = counts[Verdict.BAD] > 0
    if as_json:
        print(
            json.dumps(
                {"verdict": "bad" if is_bad else "ok", **counts, "checks": [asdict(check) for check in found]},
                ensure_ascii=False,
                indent=1,
            )
        )
    else:
        console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count), highlight=False)
    sys.exit(1 if is_bad else 0)


def _folder(model: str | None) -> tuple[Path | None, str]:
    """The checkpoint's folder, or why there is none although a model was named."""
    if model is None:
        return None, ""
    if model == "demo":
        return DEMO_CHECKPOINT, ""
    path = Path(model).expanduser()
    if path.exists() or not is_hub_id(model):
        return path, ""
    found = cached(model, revision_of(model, None))
    return found, "" if found else f"{model} is not downloaded yet (serve does it, or sparkstral download)"


def _show(console: Console, check: Check) -> None:
    colour = _COLOURS[check.verdict]
    console.print(f"[{colour}]{check.verdict.value:<6}[/{colour}] {check.name}: ", end="", highlight=False)
    console.print(check.evidence, highlight=False, markup=False, soft_wrap=True)
    if check.remedy:
        console.print(f"       → {check.remedy}", style=colour, highlight=False, markup=False, soft_wrap=True)
