"""`sparkstral download`: a model's files from the Hub, each checked by size and hash."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID, is_hub_id
from sparkstral.cli import options
from sparkstral.cli.model_folder import fetch_shown
from sparkstral.errors import ConfigError
from sparkstral.hub.download import Fetched
from sparkstral.hub.repository import look_up, revision_of
from sparkstral.units import format_bytes, format_seconds


def download(
    hub_id: Annotated[str, typer.Argument(help="owner/name on the Hub.", metavar="HUB_ID")] = EXAMPLE_HUB_ID,
    revision: Annotated[
        str | None,
        typer.Option(help="A commit, tag or branch. Default: the one that this version knows, else main."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the files go. Default: the Hub's cache, where serve HUB_ID looks.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Hash also the files that were there before.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Download the checkpoint of HUB_ID: what is needed to serve it, once, checked. Run again, it goes on where it
    stopped. HF_TOKEN, HF_HUB_OFFLINE and HF_HUB_CACHE are honoured."""
    if not is_hub_id(hub_id):
        raise ConfigError(f"{hub_id!r} is no Hub id; write owner/name, for example {EXAMPLE_HUB_ID}.")
    begin_s = time.monotonic()
    repository = look_up(hub_id, revision_of(hub_id, revision))
    files: list[Fetched] = []
    found = fetch_shown(repository, folder, deep=deep, quiet=as_json, report=files.append)
    seconds = time.monotonic() - begin_s
    if as_json:
        print(
            json.dumps(
                {
                    "repository": hub_id,
                    "revision": repository.revision,
                    "folder": str(found),
                    "num_bytes": repository.num_bytes,
                    "files": [
                        {**asdict(each.file), "was_there": each.was_there, "is_hashed": each.is_hashed}
                        for each in sorted(files, key=lambda each: each.file.name)
                    ],
                    "not_needed": repository.not_needed,
                    "lacking": repository.lacking,
                    "seconds": round(seconds, 1),
                },
                indent=1,
            )
        )
        return
    num_new = sum(not each.was_there for each in files)
    print(
        f"{hub_id} at {repository.revision}: {len(files)} files, {format_bytes(repository.num_bytes)}, "
        f"{num_new} of them downloaded now ({format_seconds(seconds)}), "
        f"{sum(each.is_hashed for each in files)} hashes checked.\n{found}"
    )
