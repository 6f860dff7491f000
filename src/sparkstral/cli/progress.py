"""How a start looks: a progress bar on a terminal, a few lines a phase elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from sparkstral.engine.client import EngineClient
from sparkstral.engine.readiness import failed_start, seconds_left
from sparkstral.types import EnginePhase, EngineStatus
from sparkstral.units import format_seconds

_POLL_S = 0.1  # often enough to look smooth
_NUM_LINES = 4  # of a phase that tells its progress, where there is no terminal: logs are read too


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
                detail = " ".join(filter(None, (status.detail, _left(client, status))))
                progress.update(task, description=status.phase.value, completed=status.progress, detail=detail)
                time.sleep(_POLL_S)
    else:
        shown = None
        while not _settled(status := client.status()):
            step = (status.phase, int(status.progress * _NUM_LINES))
            if step != shown and not quiet:
                shown = step
                share = f"{status.progress:.0%}" if status.progress else ""
                words = filter(None, ("sparkstral:", status.phase.value, share, status.detail, _left(client, status)))
                print(" ".join(words), file=sys.stderr, flush=True)
            time.sleep(_POLL_S)
    if status.phase is EnginePhase.DEAD:
        raise failed_start(status)


def _left(client: EngineClient, status: EngineStatus) -> str:
    left_s = seconds_left(status, client.phase_age_s())
    return "" if left_s is None or left_s < 1 else f"({format_seconds(left_s)} left)"


def _settled(status: EngineStatus) -> bool:
    return status.phase in (EnginePhase.READY, EnginePhase.SHORT_OF_MEMORY, EnginePhase.STALLED, EnginePhase.DEAD)
