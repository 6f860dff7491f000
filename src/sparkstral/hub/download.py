"""A repository's files onto this disk: space first, then in parallel, each checked by size and hash when it is whole.

Owns the order of these steps and what is said when one fails. Large files come by transfer.py to where huggingface-hub
looks for them; small ones, and the layout of cache and folders, are its own. Must not know what the files mean.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkstral.errors import CheckpointError
from sparkstral.hub.recorded import recorded_sha256
from sparkstral.hub.repository import HF_FILES, NATIVE_FILES, HubFile, Repository, hub_errors
from sparkstral.hub.transfer import FULL, PARTIAL_SUFFIX, UNWRITABLE, transfer
from sparkstral.units import GiB, format_bytes

NUM_WORKERS = 8  # the Hub's client's own default: one connection does not fill a fast line
RESERVE_BYTES = GiB  # that stay free on the disk: a full one stops more than this download
_HASH_CHUNK_BYTES = 8 << 20
_ELSEWHERE = "free some, or put the files on another disk: --folder DIR here, or HF_HUB_CACHE=DIR for every command"


@dataclass(frozen=True, slots=True)
class Fetched:
    """One file that is whole now."""

    file: HubFile
    path: Path
    was_there: bool
    is_hashed: bool  # its sha256 was computed and is the Hub's

    @property
    def state(self) -> str:
        return ("there before" if self.was_there else "downloaded") + (", hash checked" if self.is_hashed else "")


def cache_folder() -> Path:
    """Where the Hub's client keeps what has no folder of its own (HF_HUB_CACHE)."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def cached(repo_id: str, revision: str) -> Path | None:
    """The folder of an earlier download of this revision, without asking anybody; None if there is none. Whether it is
    whole, its headers say (checkpoint/locate)."""
    from huggingface_hub import snapshot_download

    try:
        patterns = [*NATIVE_FILES, *HF_FILES]
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=patterns, local_files_only=True))
    except Exception:  # of whatever class the client's version has for it
        return None


def missing_files(repository: Repository, folder: Path | None) -> tuple[HubFile, ...]:
    """What is not on the disk yet with its whole size."""
    return tuple(file for file in repository.files if _path_there(repository, file, folder) is None)


def check_space(repository: Repository, folder: Path | None) -> int:
    """Bytes that are still to be written, for which there is a place. Raises CheckpointError if that cannot be written,
    or has too little free."""
    place = folder or cache_folder()
    started = _partial_bytes(repository, folder)
    wanted = max(0, sum(file.num_bytes for file in missing_files(repository, folder)) - started)
    if wanted:
        _require_writable(place)
    free = shutil.disk_usage(_nearest_existing(place)).free
    if wanted and wanted + RESERVE_BYTES > free:
        raise CheckpointError(
            f"{repository.repo_id} needs {format_bytes(wanted)} more on the disk of {place}, which has "
            f"{format_bytes(free)} free ({format_bytes(RESERVE_BYTES)} of them are left alone): {_ELSEWHERE}."
        )
    return wanted


def _require_writable(place: Path) -> None:
    """By trying: for root, and on a file system that is mounted read-only, permissions do not tell."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise _unwritable(error, place) from error


def _unwritable(error: OSError, place: Path) -> CheckpointError:
    return CheckpointError(
        f"{place} cannot be written ({error.strerror}), so that the model has no place: make it writable, or name "
        "another with --folder DIR or HF_HUB_CACHE=DIR."
    )


def download(
    repository: Repository,
    folder: Path | None = None,
    *,
    deep: bool = False,
    report: Callable[[Fetched], None] = lambda fetched: None,
) -> Path:
    """All files of `repository` into `folder`, or the Hub's cache; the folder that then is the checkpoint.

    `deep`: hash also what was there before. Raises CheckpointError with what to do; what is whole stays, so that the
    same call goes on where it stopped. A file whose size or hash is not the Hub's is removed.
    """
    check_space(repository, folder)
    found: Path | None = None
    stop = threading.Event()
    with ThreadPoolExecutor(NUM_WORKERS, "download") as pool:
        running = [pool.submit(_fetch, repository, file, folder, deep, stop) for file in repository.files]
        try:
            for done in as_completed(running):
                fetched = done.result()
                report(fetched)
                found = fetched.path
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    assert found is not None  # a repository without files is refused when it is looked up
    if folder is not None:
        return folder
    if repository.asked != repository.revision:  # so that a branch is found without the Hub, as its client does it
        ref = _storage(repository) / "refs" / repository.asked
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(repository.revision)
    return found.parent


def _fetch(repository: Repository, file: HubFile, folder: Path | None, deep: bool, stop: threading.Event) -> Fetched:
    from huggingface_hub import hf_hub_download

    path = _path_there(repository, file, folder)
    if path is not None:
        if deep and file.sha256 is not None and (found := sha256_of(path)) != file.sha256:
            raise _damaged(path, f"its sha256 is {found}, and the Hub's is {file.sha256}")
        return Fetched(file, path, True, deep and file.sha256 is not None)
    with _disk_errors(folder or cache_folder(), file):
        if file.sha256 is not None:
            target, partial = _places(repository, file, folder)
            if not target.exists():
                transfer(repository, file, target, partial, stop)
        with hub_errors(repository.repo_id, repository.revision, "downloaded from the Hub"):
            path = Path(hf_hub_download(repository.repo_id, file.name, revision=repository.revision, local_dir=folder))
    if (size := path.stat().st_size) != file.num_bytes:
        raise _damaged(path, f"it has {size:,} bytes, and the Hub's has {file.num_bytes:,}")
    return Fetched(file, path, False, file.sha256 is not None)


def _places(repository: Repository, file: HubFile, folder: Path | None) -> tuple[Path, Path]:
    """Where the Hub's client finds the whole file, and where the part of it is."""
    if folder is not None:
        return folder / file.name, folder / ".cache" / "huggingface" / "download" / (file.name + PARTIAL_SUFFIX)
    blob = _storage(repository) / "blobs" / str(file.sha256)
    return blob, blob.with_name(blob.name + PARTIAL_SUFFIX)


def sha256_of(path: Path) -> str:
    """Of the whole file, whose pages are given back to the system: hashing 70 GB must not fill the page cache."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as content:
        done = 0
        while chunk := content.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
            os.posix_fadvise(content.fileno(), done, len(chunk), os.POSIX_FADV_DONTNEED)
            done += len(chunk)
    return digest.hexdigest()


def _damaged(path: Path, why: str) -> CheckpointError:
    for each in {path, path.resolve()}:  # in the cache the name is a link to the content
        each.unlink(missing_ok=True)
    return CheckpointError(
        f"{path.name} came damaged: {why}. It was removed; run the same command again to download it anew."
    )


@contextmanager
def _disk_errors(place: Path, file: HubFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # the Hub's own are told before, unless they are of this kind and have a number
        raise _of_disk(error, place, file) or error from error
    except CheckpointError as error:
        cause = error.__cause__
        told = _of_disk(cause, place, file) if isinstance(cause, OSError) else None
        raise told or error from error


def _of_disk(error: OSError, place: Path, file: HubFile) -> CheckpointError | None:
    if error.errno in FULL:
        free = format_bytes(shutil.disk_usage(_nearest_existing(place)).free)
        return CheckpointError(
            f"The disk of {place} is full ({free} free) in the middle of {file.name}: {_ELSEWHERE}. Then run the same "
            "command again; it goes on where it stopped."
        )
    if error.errno in UNWRITABLE:
        return _unwritable(error, place)
    return None


def written_bytes(repository: Repository, folder: Path | None) -> int:
    """Of the repository's files, whole and begun ones: what a bar shows."""
    whole = (file for file in repository.files if _path_there(repository, file, folder) is not None)
    return sum(file.num_bytes for file in whole) + _partial_bytes(repository, folder)


def _partial_bytes(repository: Repository, folder: Path | None) -> int:
    """Of downloads that are not finished."""
    total = 0
    for file in repository.files:
        try:
            total += _places(repository, file, folder)[1].stat().st_size
        except OSError:
            continue
    return total


def _storage(repository: Repository) -> Path:
    return cache_folder() / ("models--" + repository.repo_id.replace("/", "--"))


def _path_there(repository: Repository, file: HubFile, folder: Path | None) -> Path | None:
    """In a folder of one's own, a file of another revision may have the same name and size: what the download wrote
    down of it tells, and of small files, which have no sha256, the Hub's client."""
    if folder is not None and file.sha256 is None:
        return None
    path = (folder or _storage(repository) / "snapshots" / repository.revision) / file.name
    try:
        if path.stat().st_size != file.num_bytes:
            return None
    except OSError:
        return None
    return path if recorded_sha256(path) in (None, file.sha256) else None


def _nearest_existing(place: Path) -> Path:
    return next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
