"""How a start looks: a progress bar on a terminal, a line a phase elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import failed_start
from sparkstral.types import EnginePhase, EngineStatus

_POLL_S = 0.1  # often enough to look smooth


def show_startup(client: EngineClient, *, quiet: bool = False) -> None:
    """Show the engine's phases until it is ready; `quiet`: only wait. Raises ConfigError or NotReadyError with the
    reason if it dies."""
    console = Console(stderr=True)
    if console.is_terminal and not quiet:
        with Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"), console=console, transient=True,
        ) as progress:  # fmt: skip
            task = progress.add_task("starting", total=1.0, detail="")
            while not _settled(status := client.status()):
                progress.update(
                    task, description=status.phase.value, completed=status.progress, detail=status.detail
                )
                time.sleep(_POLL_S)
    else:
        shown = None
        while not _settled(status := client.status()):
            if status.phase is not shown and not quiet:
                shown = status.phase
                print(f"sparkstral: {status.phase.value} {status.detail}".rstrip(), file=sys.stderr, flush=True)
            time.sleep(_POLL_S)
    if status.phase is EnginePhase.DEAD:
        raise failed_start(status)


def _settled(status: EngineStatus) -> bool:
    return status.phase in (EnginePhase.READY, EnginePhase.SHORT_OF_MEMORY, EnginePhase.STALLED, EnginePhase.DEAD)
