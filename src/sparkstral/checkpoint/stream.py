"""From disk into tensors: the spans of a plan, in large reads by several threads.

Owns the readers, their buffers and the copies to a device; must not know what a tensor is for. No memory map: page
faults in the order of use read slowly, and the mapped pages stay beside the copies. For a GPU, each reader has two
pinned buffers: while the copies out of one are on their way, the next chunk is read into the other. The buffers are
touched once and used again and again; that is also what GB10 wants, where the copy engine crawls through memory that
was never touched (docs/decisions/007-loading.md), and where every byte of page cache is one that the GPU lacks. No
second buffer on the device: each piece is copied straight to its place, so that unified memory is written once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import torch
from torch import Tensor

from sparkstral.checkpoint.chunks import ALIGNMENT, Chunk, Piece, cut_into_chunks
from sparkstral.checkpoint.index import DTYPE_BYTES
from sparkstral.checkpoint.plan import LoadPlan
from sparkstral.checkpoint.spans import Buffer, Span
from sparkstral.checkpoint.weight_file import WeightFile
from sparkstral.units import MiB

_MAX_REPORTS = 1000  # of progress in a load: enough for a smooth bar

TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is. `bytes_total` is what will be read; skipped tensors are not in it."""

    bytes_done: int
    bytes_total: int
    file: Path  # the last one that reading has come to
    seconds: float


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read. Pinned memory for a GPU is `2 * num_readers * chunk_bytes` (256 MiB).

    16 MiB is far beyond what one NVMe command carries, and small enough that 16 of them are little memory; 8 readers
    keep a disk's queue full, and copy out of RAM with 8 cores.
    """

    chunk_bytes: int = 16 * MiB  # a multiple of ALIGNMENT
    num_readers: int = 8
    direct: bool = True  # past the page cache, where the file system can


DEFAULT_READING = Reading()


class Copier(Protocol):
    """The way of bytes to a device, in the order of the calls."""

    def __call__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        """Begin to copy (target on the device, source in this process' memory); what it returns waits for the end."""
        ...


class _CudaCopier:
    """Copies on a stream of its own: beside the other readers' copies and beside reading."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # The targets' memory may have been freed by work that is still queued on the current stream.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def __call__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        # It waits asleep: the cores are for reading.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event.synchronize


def fill(
    buffers: Mapping[Buffer, Tensor],
    plan: LoadPlan,
    progress: Callable[[LoadProgress], None] | None = None,
    reading: Reading = DEFAULT_READING,
    make_copier: Callable[[], Copier] | None = None,
) -> None:
    """Read all spans of `plan` into `buffers` (contiguous, of the planned shapes and dtypes, on one device).

    CPU tensors are read into directly; those of a GPU by way of pinned memory and copiers of `make_copier`, one for
    each reader (a test gives one, to take that way on the CPU). `progress` is called in this thread; what it raises
    ends the reading. Raises `CheckpointError` if a file cannot be read, or is not as its header said. Whatever is
    raised, no thread touches `buffers` afterwards.
    """
    device = next(iter(buffers.values())).device
    if make_copier is None and device.type == "cuda":
        make_copier = partial(_CudaCopier, device)
    chunks = cut_into_chunks(plan.spans, reading.chunk_bytes)
    targets = _Targets(buffers, plan.spans, is_staged=make_copier is not None)
    num_readers = min(reading.num_readers, len(chunks))
    with ExitStack() as stack:
        # O_DIRECT wants alignment, which staging memory has and tensors have not.
        direct = reading.direct and make_copier is not None
        files = {
            path: stack.enter_context(closing(WeightFile(path, num_bytes, direct)))
            for path, num_bytes in plan.file_bytes.items()
        }
        lanes: list[_Lane]
        if make_copier is None:
            lanes = [_HostLane(targets, files) for _ in range(num_readers)]
        else:
            if device.type == "cuda":
                stack.callback(_release_pinned_memory)
            staging = _allocate_staging(num_readers, reading.chunk_bytes, pinned=device.type == "cuda")
            lanes = [_StagedLane(targets, files, make_copier(), halves) for halves in staging]
            del staging
        _run(lanes, chunks, progress)
        lanes.clear()
    targets.finish()


class _Targets:
    """Where the bytes of a piece belong.

    Scalars (one number for a matrix, 14,000 of them in the released files) are gathered in this process' memory, and
    copied to a device once for each buffer.
    """

    def __init__(self, buffers: Mapping[Buffer, Tensor], spans: Iterable[Span], is_staged: bool) -> None:
        self._buffers = buffers
        self._gathered = {
            buffer: torch.empty_like(tensor, device="cpu") if is_staged else tensor
            for buffer, tensor in buffers.items()
            if buffer.is_scalar
        }
        in_host_memory = self._gathered if is_staged else buffers
        self._host_bytes = {buffer: _as_bytes(tensor).numpy().data for buffer, tensor in in_host_memory.items()}
        self._device_bytes = {
            buffer: _as_bytes(tensor) for buffer, tensor in buffers.items() if buffer not in in_host_memory
        }
        # Raw bytes of the spans whose dtype is not their buffer's.
        self._unconverted = {
            (span.buffer, span.first_element): (span, bytearray(span.num_bytes)) for span in spans if span.is_converted
        }

    def in_host_memory(self, piece: Piece) -> memoryview | None:
        """The bytes that `piece` fills, if they are in this process' memory."""
        span = piece.span
        if span.is_converted:
            _, raw = self._unconverted[span.buffer, span.first_element]
            return memoryview(raw)[piece.start : piece.start + piece.num_bytes]
        view = self._host_bytes.get(span.buffer)
        return None if view is None else view[_byte_range(piece)]

    def on_device(self, piece: Piece) -> Tensor:
        return self._device_bytes[piece.span.buffer][_byte_range(piece)]

    def finish(self) -> None:
        """Convert, and copy to the device, what was gathered."""
        for span, raw in self._unconverted.values():
            values = torch.frombuffer(raw, dtype=TORCH_DTYPES[span.tensor.dtype])
            self._gathered[span.buffer].view(-1)[span.first_element : span.first_element + len(values)] = values
        for buffer, gathered in self._gathered.items():
            if gathered is not self._buffers[buffer]:
                self._buffers[buffer].copy_(gathered)


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _byte_range(piece: Piece) -> slice:
    first = piece.span.first_element * DTYPE_BYTES[piece.span.buffer.dtype] + piece.start
    return slice(first, first + piece.num_bytes)


class _Lane(Protocol):
    """One reader's way from the files to the targets."""

    def load(self, chunk: Chunk) -> None: ...

    def finish(self) -> None:
        """Wait until nothing is on its way any more."""
        ...


class _HostLane:
    """Into the tensors directly."""

    def __init__(self, targets: _Targets, files: Mapping[Path, WeightFile]) -> None:
        self._targets = targets
        self._files = files

    def load(self, chunk: Chunk) -> None:
        file = self._files[chunk.file]
        for piece in chunk.pieces:
            target = self._targets.in_host_memory(piece)
            assert target is not None, "a CPU tensor is in host memory"
            file.read(target, piece.offset, piece.num_bytes, (piece,))
        file.forget(chunk.begin, chunk.end - chunk.begin)

    def finish(self) -> None:
        pass


@dataclass(slots=True)
class _Half:
    """One of a lane's two buffers; `wait` returns when all copies out of it are done."""

    tensor: Tensor
    view: memoryview
    wait: Callable[[], None] = lambda: None


class _StagedLane:
    """By way of two buffers in turn: one is copied from while the other is read into."""

    def __init__(
        self, targets: _Targets, files: Mapping[Path, WeightFile], copier: Copier, halves: Iterable[Tensor]
    ) -> None:
        self._targets = targets
        self._files = files
        self._copier = copier
        self._halves = deque(_Half(half, half.numpy().data) for half in halves)

    def load(self, chunk: Chunk) -> None:
        self._halves.rotate()
        half = self._halves[0]
        half.wait()
        file = self._files[chunk.file]
        num_bytes = chunk.end - chunk.begin
        file.read(half.view[: num_bytes + -num_bytes % ALIGNMENT], chunk.begin, num_bytes, chunk.pieces)
        file.forget(chunk.begin, num_bytes)
        half.wait = self._copier(self._deliver(chunk, half))

    def _deliver(self, chunk: Chunk, half: _Half) -> Iterator[tuple[Tensor, Tensor]]:
        """Put what belongs into host memory there, and give the (target, source) of what the device gets."""
        for piece in chunk.pieces:
            first = piece.offset - chunk.begin
            source = slice(first, first + piece.num_bytes)
            target = self._targets.in_host_memory(piece)
            if target is None:
                yield self._targets.on_device(piece), half.tensor[source]
            else:
                target[:] = half.view[source]

    def finish(self) -> None:
        for half in self._halves:
            half.wait()


def _allocate_staging(num_readers: int, chunk_bytes: int, pinned: bool) -> list[tuple[Tensor, Tensor]]:
    """Two buffers for each reader, at multiples of `ALIGNMENT` in memory.

    Pinned memory begins on a page, and is allocated in powers of two: it gets no room for aligning.
    """
    num_bytes = 2 * num_readers * chunk_bytes
    memory = torch.empty(num_bytes + (0 if pinned else ALIGNMENT), dtype=torch.uint8, pin_memory=pinned)
    first = -memory.data_ptr() % ALIGNMENT
    first_half, second_half = memory[first : first + num_bytes].view(2, num_readers, chunk_bytes)
    return list(zip(first_half, second_half, strict=True))


def _release_pinned_memory() -> None:
    """PyTorch keeps freed pinned memory for itself; on GB10 that is memory which the GPU lacks."""
    if hasattr(torch.accelerator, "empty_host_cache"):
        torch.accelerator.empty_host_cache()
    else:  # torch 2.11 has it under this name only
        torch._C._host_emptyCache()


def _run(lanes: Sequence[_Lane], chunks: Sequence[Chunk], progress: Callable[[LoadProgress], None] | None) -> None:
    """Load `chunks` through `lanes`, each in a thread, in order of their beginning."""
    started, bytes_done, bytes_reported = time.monotonic(), 0, 0
    bytes_total = sum(chunk.num_bytes for chunk in chunks)
    work, events, stopping = deque(range(len(chunks))), SimpleQueue[_Event](), threading.Event()
    readers = [
        threading.Thread(
            target=_read_chunks, args=(lane, chunks, work, events, stopping), name=f"weights-{number}", daemon=True
        )
        for number, lane in enumerate(lanes)
    ]
    furthest, num_running = 0, len(readers)
    try:
        for reader in readers:
            reader.start()
        while num_running:
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                num_running -= 1
                continue
            furthest = max(furthest, event)
            bytes_done += chunks[event].num_bytes
            bytes_due = min(bytes_reported + bytes_total / _MAX_REPORTS, bytes_total)
            if progress is not None and bytes_done >= bytes_due:
                seconds = time.monotonic() - started
                progress(LoadProgress(bytes_done, bytes_total, chunks[furthest].file, seconds))
                bytes_reported = bytes_done
    finally:
        stopping.set()
        for reader in readers:
            reader.join()


_Event = int | BaseException | None  # of a reader: the chunk that it loaded, why it failed, that it ended


def _read_chunks(
    lane: _Lane,
    chunks: Sequence[Chunk],
    work: deque[int],
    events: SimpleQueue[_Event],
    stopping: threading.Event,
) -> None:
    """A reader: the next chunk until there is none. Ends with nothing of its own on the way, also after an error."""
    try:
        try:
            while work and not stopping.is_set():
                try:
                    index = work.popleft()
                except IndexError:  # another reader took the last one
                    break
                lane.load(chunks[index])
                events.put(index)
        finally:
            lane.finish()
    except BaseException as error:
        events.put(error)
    finally:
        events.put(None)
