"""One engine of a user on a device: a second one is told who was there first.

Owns the file and its lock. The lock is the kernel's (flock), so that it ends with its process however that ends; what
the file says is only for people, and a file without a lock is left over and taken over. Must not know what a device is.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from sparkstral.errors import SparkstralError

logger = logging.getLogger(__name__)


class DeviceBusyError(SparkstralError):
    """Another engine of this user has the device; the message says its process and port."""


class DeviceLock:
    """Held until `release`, or until this process ends."""

    def __init__(self, file_descriptor: int) -> None:
        self._file_descriptor = file_descriptor

    @classmethod
    def take(cls, device: str, port: int | None, folder: Path | None = None) -> DeviceLock | None:
        """For the device of this name. Raises DeviceBusyError; None where no file can be had, which keeps nobody from
        serving."""
        try:
            folder = folder or lock_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', device)}.lock"
            file_descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            logger.warning("no lock is held on %s: %s", device, error)
            return None
        before = _read(path)
        try:
            fcntl.flock(file_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file_descriptor)
            raise DeviceBusyError(_busy(device, before)) from error
        if before:
            logger.info("process %s has left its lock on %s behind; it is taken over", before.get("pid"), device)
        os.ftruncate(file_descriptor, 0)
        os.write(file_descriptor, json.dumps({"pid": os.getpid(), "port": port}).encode())
        return cls(file_descriptor)

    def release(self) -> None:
        os.ftruncate(self._file_descriptor, 0)
        os.close(self._file_descriptor)


def lock_folder() -> Path:
    """The user's own folder for what lives no longer than a session, or one in the temporary folder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "sparkstral" if runtime else Path(tempfile.gettempdir()) / f"sparkstral-{os.getuid()}"


def _busy(device: str, other: dict[str, Any]) -> str:
    process = f"process {other['pid']}" if "pid" in other else "another process"
    where = f", which serves port {other['port']}" if other.get("port") else ""
    stop = f"stop it first (kill {other['pid']})" if "pid" in other else "stop it first"
    return (
        f"An engine of yours has {device} already: {process}{where}. Two of them do not fit on one GPU. Use that one, "
        f"or {stop}."
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
