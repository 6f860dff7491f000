"""The headers of a checkpoint on the Hub, fetched by range: a few MB say what 70 GB hold.

Owns the requests and a folder that looks like the checkpoint to whoever reads headers alone: configuration and index
whole, weight files of the right size whose data is a hole. Must not know what the headers mean (checkpoint/).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID
from sparkstral.errors import CheckpointError
from sparkstral.hub.repository import hub_errors, revision_of

# Both layouts as files of a repository: configuration, index, and the only weight file where there is no index.
_LAYOUTS = (
    ("params.json", "consolidated.safetensors.index.json", "consolidated.safetensors"),
    ("config.json", "model.safetensors.index.json", "model.safetensors"),
)
_FIRST_BYTES = 1 << 20  # most headers of a shard are shorter, so that one request a file does
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_TIMEOUT_S = 30.0

Fetch = Callable[[str, tuple[int, int] | None], tuple[bytes, int] | None]
"""A file's bytes from first to last (None: all of it) and its size; None if the repository has no such file."""


def fetch_headers(repo_id: str, folder: Path, fetch: Fetch | None = None) -> None:
    """Fill `folder` with what `plan_load` reads of the repository. Raises CheckpointError with what to do."""
    fetch = fetch or hub_fetch(repo_id)
    for config, index, single in _LAYOUTS:
        found = fetch(config, None)
        if found is None:
            continue
        (folder / config).write_bytes(found[0])
        if (content := fetch(index, None)) is None:
            names = [single]
        else:
            (folder / index).write_bytes(content[0])
            names = _shards(repo_id, index, content[0])
        for name in names:
            _write_header(repo_id, folder / name, fetch)
        return
    raise CheckpointError(
        f"{repo_id} on the Hub has neither params.json nor config.json, so that it is no checkpoint of this model. "
        f"The released one is {EXAMPLE_HUB_ID}."
    )


def _shards(repo_id: str, index: str, content: bytes) -> list[str]:
    try:
        names = sorted({str(name) for name in json.loads(content)["weight_map"].values()})
    except (ValueError, KeyError, AttributeError, TypeError):
        names = []
    if not names or any("/" in name or name.startswith(".") for name in names):
        raise CheckpointError(f"{repo_id} on the Hub: {index} names no weight files. Use another repository.")
    return names


def _write_header(repo_id: str, path: Path, fetch: Fetch) -> None:
    found = fetch(path.name, (0, _FIRST_BYTES - 1))
    if found is None:
        raise CheckpointError(f"{repo_id} on the Hub lacks the weight file {path.name}. Use another repository.")
    start, size = found
    length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
    if not 0 < length <= min(_MAX_HEADER_BYTES, size - 8):
        raise CheckpointError(f"{repo_id} on the Hub: {path.name} is no safetensors file. Use another repository.")
    if 8 + length > len(start):
        rest = fetch(path.name, (len(start), 7 + length))
        start += rest[0] if rest is not None else b""
    with path.open("wb") as file:
        file.write(start[: 8 + length])
        file.truncate(size)


def hub_fetch(repo_id: str, revision: str | None = None) -> Fetch:
    """Over HTTP, with the user's token, endpoint and offline mode as the Hub's own client has them."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    revision = revision_of(repo_id, revision)

    def fetch(name: str, span: tuple[int, int] | None) -> tuple[bytes, int] | None:
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1]}"
        url = hf_hub_url(repo_id, name, revision=revision)
        try:
            with (
                hub_errors(repo_id, revision, "fetched from the Hub"),
                get_session().stream(
                    "GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S
                ) as response,
            ):
                if response.status_code >= 400:
                    response.read()
                    hf_raise_for_status(response)
                if span is not None and response.status_code != 206:
                    raise CheckpointError(
                        f"The Hub does not send parts of {repo_id}/{name}. Plan a folder that holds the files instead."
                    )
                content = bytes(response.read())
        except CheckpointError as error:
            if isinstance(error.__cause__, EntryNotFoundError):
                return None
            raise
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
        return content, int(total) if total.isdigit() else len(content)

    return fetch
