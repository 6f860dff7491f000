"""How fast a file comes from its disk: read past the page cache in the way that loading does."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_CHUNK_BYTES = 16 << 20
_NUM_READERS = 4
_MAX_BYTES = 1 << 30  # a quarter of a second of a good disk
_MIN_BYTES = 256 << 20  # less says nothing


def read_speed(path: Path) -> float | None:
    """Bytes a second of the file's first GiB by O_DIRECT; None if it is too small or its disk does not do that."""
    try:
        size = min(path.stat().st_size, _MAX_BYTES) // _CHUNK_BYTES * _CHUNK_BYTES
        if size < _MIN_BYTES:
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        begin = time.perf_counter()
        with ThreadPoolExecutor(_NUM_READERS) as pool:
            spans = [range(reader * _CHUNK_BYTES, size, _NUM_READERS * _CHUNK_BYTES) for reader in range(_NUM_READERS)]
            list(pool.map(lambda offsets: _read(descriptor, offsets), spans))
        return size / (time.perf_counter() - begin)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _read(descriptor: int, offsets: range) -> None:
    with mmap.mmap(-1, _CHUNK_BYTES) as aligned:
        for offset in offsets:
            os.preadv(descriptor, [aligned], offset)
