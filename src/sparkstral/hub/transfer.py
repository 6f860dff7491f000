"""One large file of the Hub onto this disk, from the byte on at which an earlier try stopped.

Owns the partial file, its resumption and the hash, which is taken as the bytes come. huggingface-hub's own transfer
begins anew after an interruption since its version 2 (its partial files have random names), which for shards of 5 GB
is not a resumption. Must not know where a file's place is.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sparkstral.errors import CheckpointError
from sparkstral.hub.repository import HubFile, Repository, hub_errors

PARTIAL_SUFFIX = ".sparkstral.incomplete"
_CHUNK_BYTES = 1 << 20
_SYNC_BYTES = 256 << 20  # after so many the disk has them for certain, and their pages are given back
_TIMEOUT_S = 30.0
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_MAX_FRUITLESS = 5  # tries in a row that bring no byte
_FIRST_PAUSE_S = 1.0  # before the second try; then twice as long each time


class StoppedTransferError(CheckpointError):
    """Another file failed, or the user has enough of it; what came so far is kept."""


def transfer(
    repository: Repository, file: HubFile, target: Path, partial: Path, stop: threading.Event
) -> None:
    """`target` becomes the file, checked by size and sha256, in one step at the end.

    Raises CheckpointError with what to do; OSError of the disk. What came stays in `partial` for the next call, unless
    it is not what the Hub has."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("a+b") as content:
        digest = hashlib.sha256()
        done = _hash_there(content, digest, file.num_bytes)
        fruitless = 0
        while done < file.num_bytes:
            before = done
            try:
                with hub_errors(repository.repo_id, repository.revision, f"downloaded from the Hub ({file.name})"):
                    for chunk in _stream(repository, file, done):
                        if chunk is None:  # the server has no ranges: all of it comes
                            content.truncate(0)
                            digest, done = hashlib.sha256(), 0
                            continue
                        content.write(chunk)
                        digest.update(chunk)
                        done += len(chunk)
                        if done // _SYNC_BYTES > (done - len(chunk)) // _SYNC_BYTES:
                            _settle(content)
                        if stop.is_set():
                            raise StoppedTransferError(f"The download of {file.name} was stopped.")
            except CheckpointError as error:
                fruitless = 0 if done > before else fruitless + 1
                if isinstance(error, StoppedTransferError) or _is_final(error) or fruitless >= _MAX_FRUITLESS:
                    raise
                stop.wait(_FIRST_PAUSE_S * 2**fruitless)
        _settle(content)
    if (found := digest.hexdigest()) != file.sha256 or done != file.num_bytes:
        partial.unlink()
        raise CheckpointError(
            f"{file.name} came damaged: its sha256 is {found}, and the Hub's is {file.sha256}. It was removed; run the "
            "same command again to download it anew."
        )
    os.replace(partial, target)


def _hash_there(content: IO[bytes], digest: Any, most: int) -> int:
    content.seek(0, os.SEEK_END)
    if content.tell() > most:
        content.truncate(0)
    content.seek(0)
    done = 0
    while chunk := content.read(_CHUNK_BYTES):
        digest.update(chunk)
        done += len(chunk)
    return done


def _settle(content: IO[bytes]) -> None:
    content.flush()
    os.fdatasync(content.fileno())
    os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _stream(repository: Repository, file: HubFile, begin: int) -> Iterator[bytes | None]:
    """The bytes from `begin` on; None before the first if they come from the beginning all the same."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    url = hf_hub_url(repository.repo_id, file.name, revision=repository.revision)
    with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S) as response:
        if response.status_code >= 400:
            response.read()
            hf_raise_for_status(response)
        if begin and response.status_code != 206:
            yield None
        yield from response.iter_raw()  # as it comes: what a chunk still collects would be lost with the line


def _is_final(error: CheckpointError) -> bool:
    """Whether the Hub has answered no, or the disk does not take it: trying again soon would end the same."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in (*FULL, *UNWRITABLE, errno.EIO):
        return True
    status = getattr(getattr(cause, "response", None), "status_code", None)
    return status is not None and 400 <= status < 500 and status != 429
