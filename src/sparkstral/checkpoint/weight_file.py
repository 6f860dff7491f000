"""A weight file that is open for reading, past the page cache where the file system can.

Owns open, read and their errors; must not know what the bytes are.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from sparkstral.checkpoint.chunks import Piece
from sparkstral.errors import CheckpointError


class WeightFile:
    """One file descriptor, which any number of threads may read from.

    `is_direct`: read with O_DIRECT, which leaves nothing in the page cache. Elsewhere (tmpfs before Linux 6.6, some
    network file systems) the pages are given back after each read.
    """

    def __init__(self, path: Path, num_bytes: int, direct: bool) -> None:
        """Raises `CheckpointError` if the file cannot be opened, or is not `num_bytes` long as its header said."""
        self.path = path
        self.is_direct = direct
        try:
            self._descriptor = self._open()
            found = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise self._unreadable(error) from error
        if found != num_bytes:
            self.close()
            raise CheckpointError(
                f"{path} has {found:,} bytes, and had {num_bytes:,} when its header was read: something is writing to "
                "it. Wait until a download that is running has ended, and start again."
            )

    def _open(self) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC
        if self.is_direct:
            try:
                return os.open(self.path, flags | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.is_direct = False
        descriptor = os.open(self.path, flags)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # twice the read-ahead
        return descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, target: memoryview, offset: int, num_bytes: int, pieces: Iterable[Piece]) -> None:
        """Fill the first `num_bytes` bytes of `target` from `offset` on; what follows in it may be overwritten.

        For O_DIRECT the memory, its length and `offset` must be multiples of `ALIGNMENT`. Raises `CheckpointError`
        if the file cannot be read, or ends before that, naming the first of `pieces` (in order) that is not whole.
        """
        done = 0
        while done < num_bytes:
            was_direct = self.is_direct
            try:
                count = os.preadv(self._descriptor, [target[done:]], offset + done)
            except OSError as error:
                if was_direct and error.errno in (errno.EINVAL, errno.EFAULT):
                    # This file system opens so but does not read so, or not into this memory, or wants another
                    # alignment, or the file now ends at an odd byte. Other threads may find it too, and do the same.
                    self._read_through_the_page_cache()
                    continue
                raise self._unreadable(error, offset + done) from error
            if count == 0:
                end = offset + done
                cut = next(piece for piece in pieces if piece.offset + piece.num_bytes > end).span.tensor
                raise CheckpointError(
                    f"{self.path} is truncated: tensor {cut.name} ends at byte {cut.offset + cut.num_bytes:,}, and the "
                    f"file now at {end:,}. Download it again."
                )
            done += count

    def _read_through_the_page_cache(self) -> None:
        self.is_direct = False
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def forget(self, offset: int, num_bytes: int) -> None:
        """Give back the page cache of what has been read."""
        if not self.is_direct:
            os.posix_fadvise(self._descriptor, offset, num_bytes, os.POSIX_FADV_DONTNEED)

    def _unreadable(self, error: OSError, offset: int | None = None) -> CheckpointError:
        where = "" if offset is None else f" at byte {offset:,}"
        return CheckpointError(
            f"{self.path} cannot be read{where}: {error.strerror}. Check its permissions and the disk, and download it "
            "again if it is damaged."
        )
