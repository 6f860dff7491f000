"""Blocks on disk: what a cached prefix holds, kept over restarts and evictions.

Owns a folder of files, one a block, named by the digest of the prefix that ends with it, and their total size. Must
not know tensors (a block is bytes) or requests. A file is believed only if its head is of this layout (model, dtype,
shapes: `layout`), its tokens and parent are those that are looked for, and its checksum is right; what is not is
removed or left alone with one warning. One thread writes: disks are slow, and the step loop does not wait for them. A
disk that is full or fails ends the writing, not the serving.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import zlib
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path

from sparkstral.kv_cache.prefix_index import BlockKey
from sparkstral.units import format_bytes

logger = logging.getLogger(__name__)

VERSION = b"sparkstral kv 1\n"
SUFFIX = ".kv"
MAX_QUEUED = 16  # blocks that wait to be written, about 1.5 MB each for the full model; more are left out


class BlockStore:
    """`read`, `write` and `forget` are called by one thread. Raises OSError if the folder cannot be made."""

    def __init__(self, folder: Path, layout: bytes, max_bytes: int) -> None:
        self._layout = blake2b(VERSION + layout, digest_size=16).digest()
        self._folder = folder / self._layout.hex()
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[bytes, int] = OrderedDict()  # by digest, longest unused first
        self._num_bytes = 0
        self._lock = threading.Lock()  # of the two above, which the writer changes too
        self._has_warned = False
        self.is_writing = True  # until the disk is full or fails
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._find()
        self._queue: queue.Queue[tuple[bytes, bytes] | None] = queue.Queue(MAX_QUEUED)
        self._writer = threading.Thread(target=self._write_queued, name="kv-writer", daemon=True)
        self._writer.start()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: BlockKey) -> bool:
        return key.digest in self._sizes

    @property
    def has_room(self) -> bool:
        """Whether a block can be taken for writing now."""
        return self.is_writing and not self._queue.full()

    def read(self, key: BlockKey, num_bytes: int) -> bytes | None:
        """The block's content, or None if it is not there or not to be believed."""
        with self._lock:
            if key.digest not in self._sizes:
                return None
            self._sizes.move_to_end(key.digest)
        path = self._path(key.digest)
        head = self._head(key)
        try:
            data = path.read_bytes()
            os.utime(path)  # the order of use over restarts
        except OSError as error:
            self._warn(f"{path} cannot be read: {error}")
            self.forget(key)
            return None
        content, checksum = data[len(head) : -4], data[-4:]
        is_sound = data.startswith(head) and len(content) == num_bytes and checksum == _checksum(head, content)
        if not is_sound:
            self._warn(f"{path} is damaged or of something else, and is removed")
            self.forget(key)
            return None
        return content

    def write(self, key: BlockKey, content: bytes) -> bool:
        """Have the block written; False if that cannot be done now."""
        if not self.is_writing or len(content) > self._max_bytes // 2:
            return False
        head = self._head(key)
        try:
            self._queue.put_nowait((key.digest, head + content + _checksum(head, content)))
        except queue.Full:
            return False
        return True

    def forget(self, key: BlockKey) -> None:
        """Remove a block."""
        with self._lock:
            self._remove(key.digest)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, as far as the time allows."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._writer.join(timeout_s)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _head(self, key: BlockKey) -> bytes:
        """The digest is chained over all tokens before, so that it stands for the parent too."""
        return VERSION + self._layout + key.digest + key.tokens

    def _path(self, digest: bytes) -> Path:
        return self._folder / (digest.hex() + SUFFIX)

    def _find(self) -> None:
        found = []
        for entry in os.scandir(self._folder):
            stem, suffix = os.path.splitext(entry.name)
            try:
                digest = bytes.fromhex(stem)
                status = entry.stat()
            except (ValueError, OSError):
                digest = b""
            if suffix != SUFFIX or len(digest) != 32:
                if entry.name.endswith(".part"):
                    os.unlink(entry.path)
                else:
                    self._warn(f"{entry.path} is no block, and is left alone")
                continue
            found.append((status.st_mtime_ns, digest, status.st_size))
        for _, digest, size in sorted(found):
            self._sizes[digest] = size
            self._num_bytes += size
        self._make_room(0)
        logger.info("%s holds %d blocks, %s", self._folder, len(self._sizes), format_bytes(self._num_bytes))

    def _write_queued(self) -> None:
        while (item := self._queue.get()) is not None:
            if not self.is_writing:
                continue
            digest, data = item
            path = self._path(digest)
            part = path.with_suffix(".part")
            try:
                with self._lock:
                    self._make_room(len(data))
                part.write_bytes(data)
                part.replace(path)
            except OSError as error:
                self.is_writing = False
                logger.warning("no more KV blocks are written to %s: %s", self._folder, error)
                part.unlink(missing_ok=True)
                continue
            with self._lock:
                self._num_bytes += len(data) - self._sizes.pop(digest, 0)
                self._sizes[digest] = len(data)

    def _make_room(self, num_bytes: int) -> None:
        while self._sizes and self._num_bytes + num_bytes > self._max_bytes:
            self._remove(next(iter(self._sizes)))

    def _remove(self, digest: bytes) -> None:
        size = self._sizes.pop(digest, None)
        if size is not None:
            self._num_bytes -= size
            self._path(digest).unlink(missing_ok=True)

    def _warn(self, words: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("KV folder: %s; no more of this is said", words)


def _checksum(head: bytes, content: bytes) -> bytes:
    return zlib.crc32(content, zlib.crc32(head)).to_bytes(4, "little")
