"""Which bytes are read together: neighbouring spans of a file as few large reads.

Plain values, standard library only; must not read (stream) or know what a tensor is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sparkstral.checkpoint.spans import Span

ALIGNMENT = 4096  # of offsets, lengths and memory for O_DIRECT; no common disk has larger blocks
_MAX_GAP_BYTES = 1 << 20  # unneeded bytes read along: 0.1 ms at 10 GB/s, about the latency of a read of its own


class Piece(NamedTuple):
    """The part of a span that lies in a chunk: `num_bytes` from byte `start` of the span on."""

    span: Span
    start: int
    num_bytes: int

    @property
    def offset(self) -> int:
        """Where it begins in the file."""
        return self.span.offset + self.start


@dataclass(slots=True)
class Chunk:
    """One read: the bytes of `file` from `begin` (a multiple of `ALIGNMENT`) to `end`, and what they are."""

    file: Path
    begin: int
    end: int
    pieces: list[Piece] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Bytes that are wanted; those read between them are not counted."""
        return sum(piece.num_bytes for piece in self.pieces)


def cut_into_chunks(spans: Iterable[Span], chunk_bytes: int) -> list[Chunk]:
    """`spans`, sorted by file and offset, as reads of at most `chunk_bytes`, a multiple of `ALIGNMENT`.

    Spans of one file may overlap (two tensors of the engine that are filled from one of the file).
    """
    if chunk_bytes <= 0 or chunk_bytes % ALIGNMENT:
        raise ValueError(f"chunk_bytes is {chunk_bytes}, and must be a multiple of {ALIGNMENT}")
    chunks: list[Chunk] = []
    chunk: Chunk | None = None
    for span in spans:
        start = 0
        while start < span.num_bytes:
            offset = span.offset + start
            if (
                chunk is None
                or chunk.file != span.tensor.file
                or not chunk.begin <= offset < chunk.begin + chunk_bytes
                or offset - chunk.end > _MAX_GAP_BYTES
            ):
                begin = offset - offset % ALIGNMENT
                chunk = Chunk(span.tensor.file, begin, begin)
                chunks.append(chunk)
            num_bytes = min(span.num_bytes - start, chunk.begin + chunk_bytes - offset)
            chunk.pieces.append(Piece(span, start, num_bytes))
            chunk.end = max(chunk.end, offset + num_bytes)
            start += num_bytes
    return chunks
