"""Blocks on disk: found again, bounded, and never believed blindly."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from sparkstral.kv_cache.block_store import BlockStore
from sparkstral.kv_cache.prefix_index import BlockKey, KeyChain, digest_256

CONTENT = bytes(range(256)) * 4


def key(number: int) -> BlockKey:
    return KeyChain("", 4, digest_256).key(0, [number] * 4)


def store(folder: Path, layout: bytes = b"model a", max_bytes: int = 1 << 20) -> BlockStore:
    return BlockStore(folder, layout, max_bytes)


def written(folder: Path, *numbers: int, max_bytes: int = 1 << 20) -> None:
    one = store(folder, max_bytes=max_bytes)
    for number in numbers:
        assert one.write(key(number), CONTENT)
    one.close(30)


def only_file(folder: Path) -> Path:
    (path,) = folder.rglob("*.kv")
    return path


def test_what_was_written_is_found_by_the_next(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    again = store(tmp_path)
    assert len(again) == 2
    assert key(1) in again
    assert again.read(key(1), len(CONTENT)) == CONTENT
    assert key(3) not in again
    assert again.read(key(3), len(CONTENT)) is None


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    written(tmp_path, 1)
    assert key(1) not in store(tmp_path, b"model b")


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "of another prefix", "longer"])
def test_a_damaged_file_is_not_believed_and_goes_with_one_warning(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.Logger("of this test alone")
    logger.addHandler(caplog.handler)
    monkeypatch.setattr("sparkstral.kv_cache.block_store.logger", logger)
    written(tmp_path, 1)
    path = only_file(tmp_path)
    data = path.read_bytes()
    wanted = key(1)
    match damage:
        case "cut":
            path.write_bytes(data[:-100])
        case "changed":
            path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
        case "emptied":
            path.write_bytes(b"")
        case "longer":
            path.write_bytes(data + b"more")
        case _:
            wanted = key(2)
            path.rename(path.with_name(wanted.digest.hex() + ".kv"))
    again = store(tmp_path)
    caplog.clear()
    assert again.read(wanted, len(CONTENT)) is None
    assert wanted not in again
    assert list(tmp_path.rglob("*.kv")) == []
    assert len(caplog.records) == 1


def test_foreign_and_unfinished_files_are_no_blocks(tmp_path: Path) -> None:
    written(tmp_path, 1)
    folder = only_file(tmp_path).parent
    (folder / "notes.txt").write_text("mine")
    (folder / "0123.part").write_bytes(b"half")
    assert len(store(tmp_path)) == 1
    assert sorted(path.suffix for path in folder.iterdir()) == [".kv", ".txt"]


def test_the_size_is_bounded_and_the_longest_unused_go_first(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    size = store(tmp_path).num_bytes // 3
    bounded = store(tmp_path, max_bytes=3 * size)
    assert bounded.read(key(1), len(CONTENT)) is not None
    assert bounded.write(key(4), CONTENT)
    bounded.close(30)
    assert bounded.num_bytes <= 3 * size
    assert [number for number in (1, 2, 3, 4) if key(number) in store(tmp_path)] == [1, 3, 4]
    assert len(store(tmp_path, max_bytes=size)) == 1


def test_a_full_disk_ends_the_writing_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 1)
    full = store(tmp_path)

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_space)
    assert full.write(key(2), CONTENT)
    full.close(30)
    assert not full.is_writing
    assert not full.write(key(3), CONTENT)
    assert full.read(key(1), len(CONTENT)) == CONTENT
    assert key(2) not in full
