from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkstral.engine.device_lock import DeviceBusyError, DeviceLock, lock_folder

DEVICE = "NVIDIA GB10 GPU-1/2"


def take(folder: Path, port: int | None = 8002) -> DeviceLock:
    lock = DeviceLock.take(DEVICE, port, folder)
    assert lock is not None
    return lock


def test_who_comes_second_is_told_the_process_and_port_of_the_first(tmp_path: Path) -> None:
    lock = take(tmp_path)
    with pytest.raises(DeviceBusyError, match=rf"process {os.getpid()}, which serves port 8002.*kill {os.getpid()}"):
        take(tmp_path, 8003)
    other = DeviceLock.take("another device", 1, tmp_path)
    assert other is not None
    lock.release()
    take(tmp_path, None)
    with pytest.raises(DeviceBusyError, match=rf"already: process {os.getpid()}\. Two"):
        take(tmp_path)


def test_a_lock_outlives_its_holder_by_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The kernel takes it back from a process that was killed; the file stays, and is taken over."""
    program = f"""
import os
from pathlib import Path
from sparkstral.engine.device_lock import DeviceLock
DeviceLock.take({DEVICE!r}, 1, Path({str(tmp_path)!r}))
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert killed.returncode == -9
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["pid"] != os.getpid()
    with caplog.at_level(logging.INFO):
        take(tmp_path)
    assert "has left its lock on" in caplog.text
    assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_file_that_says_nothing_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "NVIDIA-GB10-GPU-1-2.lock"
    path.write_text("not JSON")
    lock = take(tmp_path)
    path.write_text("")
    with pytest.raises(DeviceBusyError, match="another process"):
        take(tmp_path)
    lock.release()


def test_where_no_file_can_be_had_it_serves_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert DeviceLock.take(DEVICE, 1, tmp_path / "file" / "folder") is None


def test_each_user_has_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert lock_folder() == Path("/run/user/7/sparkstral")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert str(os.getuid()) in lock_folder().name
