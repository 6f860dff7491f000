"""Where the model is: the demo, a folder, or a repository of the Hub that is downloaded first.

Owns the meaning of a MODEL argument, and what is shown of a download; what the folder holds is checkpoint/'s business,
and how files come from the Hub is hub/'s.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID, is_hub_id, locate, locate_tokenizer
from sparkstral.config import EngineConfig
from sparkstral.demo.location import DEMO_CHECKPOINT
from sparkstral.engine.messages import Setup, encode_setup
from sparkstral.errors import CheckpointError, ConfigError, MemoryPlanError
from sparkstral.hub.download import Fetched, cached, check_space, download, missing_files, written_bytes
from sparkstral.hub.headers import fetch_headers, hub_fetch
from sparkstral.hub.repository import (
    PINNED_REVISIONS,
    Repository,
    UnreachableHubError,
    look_up,
    revision_of,
)
from sparkstral.units import format_bytes

_POLL_S = 0.5
Check = Callable[[Path], None]
"""Given a folder with the headers of a model that is not here yet; raises if it is not worth its download."""


def resolve_model(model: str, check: Check | None = None) -> Path:
    """The folder that `model` means: "demo", a path, or `owner/name` on the Hub (downloaded, resumable).

    Raises CheckpointError with what to do when there is no such thing, and what `check` raises before a download.
    """
    if model == "demo":
        return DEMO_CHECKPOINT
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is a file; name the folder that holds the checkpoint: {path.parent}")
    if is_hub_id(model):
        return _from_hub(model, check)
    raise CheckpointError(
        f"No model at {model!r}. Give the folder of a checkpoint, a Hub id such as "
        f"{EXAMPLE_HUB_ID}, or nothing for the demo model."
    )


def _from_hub(repo_id: str, check: Check | None) -> Path:
    revision = revision_of(repo_id, None)
    earlier = cached(repo_id, revision)
    if repo_id in PINNED_REVISIONS and earlier is not None and _is_whole(earlier):
        return earlier  # a commit never changes: nothing to ask the Hub for
    try:
        repository = look_up(repo_id, revision)
    except UnreachableHubError:
        if earlier is None:
            raise
        return earlier
    if check is not None and missing_files(repository, None):
        check_space(repository, None)
        with tempfile.TemporaryDirectory(prefix="sparkstral-headers-") as headers:
            fetch_headers(repo_id, Path(headers), hub_fetch(repo_id, repository.revision))
            check(Path(headers))
    return fetch_shown(repository, None)


def _is_whole(folder: Path) -> bool:
    try:
        locate(folder)
        locate_tokenizer(folder)
    except CheckpointError:
        return False
    return True


def with_model(config: EngineConfig, model: str) -> EngineConfig:
    """`config` for what `model` means; a model of the Hub that it has no memory for is not downloaded."""
    return replace(config, model_path=resolve_model(model, refuse_by_plan(config)))


def refuse_by_plan(config: EngineConfig) -> Check:
    """A check that plans the memory exactly as the engine's start will. Raises what that would raise."""

    def check(headers: Path) -> None:
        setup = Setup(replace(config, model_path=headers), "", "", "text", "WARNING")
        command = [sys.executable, "-W", "ignore", "-m", "sparkstral.engine.preflight", encode_setup(setup)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
            kind = ConfigError if done.returncode == 2 else MemoryPlanError
            raise kind(f"{reason.rstrip('.')}. Nothing was downloaded.")

    return check


def fetch_shown(
    repository: Repository,
    folder: Path | None,
    *,
    deep: bool = False,
    quiet: bool = False,
    report: Callable[[Fetched], None] = lambda fetched: None,
) -> Path:
    """Download, with a bar on a terminal and a line a file elsewhere, on standard error. See hub/download."""
    num_missing = len(missing_files(repository, folder))
    if quiet or not (num_missing or deep):
        return download(repository, folder, deep=deep, report=report)
    wanted = check_space(repository, folder)
    print(
        f"sparkstral: {repository.repo_id} at {repository.revision[:12]}: {len(repository.files)} files, "
        f"{format_bytes(repository.num_bytes)}; {format_bytes(wanted)} to download. {repository.remark()}".rstrip(),
        file=sys.stderr,
        flush=True,
    )
    console = Console(stderr=True)
    if console.is_terminal:
        with _bar(console, repository, folder):
            return download(repository, folder, deep=deep, report=report)
    count = 0

    def say(fetched: Fetched) -> None:
        nonlocal count
        count += 1
        report(fetched)
        place = f"({count} of {len(repository.files)})"
        print(f"sparkstral: {fetched.file.name}: {fetched.state} {place}", file=sys.stderr, flush=True)

    return download(repository, folder, deep=deep, report=say)


@contextmanager
def _bar(console: Console, repository: Repository, folder: Path | None) -> Iterator[None]:
    """Shows what is on the disk: the Hub's client has several ways of transfer, and only some tell their progress."""
    ended = threading.Event()
    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(), console=console, transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("downloading", total=repository.num_bytes)

        def follow() -> None:
            while not ended.wait(_POLL_S):
                progress.update(task, completed=written_bytes(repository, folder))

        follower = threading.Thread(target=follow, name="download bar", daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()
