"""Reading: merged reads, several readers, two buffers in turn, and files that fail underneath."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkstral.checkpoint import weight_file
from sparkstral.checkpoint.chunks import ALIGNMENT, cut_into_chunks
from sparkstral.checkpoint.forms import Form, Part
from sparkstral.checkpoint.index import TensorEntry
from sparkstral.checkpoint.load import load_planned
from sparkstral.checkpoint.plan import LoadPlan, plan_load
from sparkstral.checkpoint.spans import Buffer, Span
from sparkstral.checkpoint.stream import TORCH_DTYPES, LoadProgress, Reading, fill
from sparkstral.errors import CheckpointError
from tests.support.messages import says
from tests.support.tiny_checkpoint import (
    TINY,
    ExpertForm,
    equal_gate_up_scales,
    hf_tensors,
    native_tensors,
    text_config,
    write_hf,
    write_native,
)

Buffers = dict[Buffer, Tensor]
SMALL = Reading(chunk_bytes=ALIGNMENT, num_readers=1)  # one reader: chunks come one after the other


class LateCopier:
    """A device whose copies happen as late as they may: when somebody waits for them.

    Whoever reads into a buffer without waiting for the copies out of it sees other bytes arrive.
    """

    def __call__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        begun = list(pairs)

        def wait() -> None:
            while begun:
                target, source = begun.pop()
                target.copy_(source)

        return wait


def allocate(plan: LoadPlan) -> Buffers:
    """Buffers full of ones' bits, so that a byte that is not filled is seen."""
    buffers = {}
    for buffer in plan.buffers:
        raw = torch.full((buffer.num_bytes,), 0xFF, dtype=torch.uint8)
        buffers[buffer] = raw.view(TORCH_DTYPES[buffer.dtype]).view(buffer.shape)
    return buffers


def read_simply(plan: LoadPlan) -> dict[Buffer, bytes]:
    """One span after the other, each from the whole file's bytes."""
    buffers = {buffer: bytearray(buffer.num_bytes) for buffer in plan.buffers}
    for span in plan.spans:
        content = span.tensor.file.read_bytes()[span.offset : span.offset + span.num_bytes]
        if span.tensor.dtype != span.buffer.dtype:
            values = torch.frombuffer(bytearray(content), dtype=TORCH_DTYPES[span.tensor.dtype])
            content = values.to(TORCH_DTYPES[span.buffer.dtype]).numpy().tobytes()
        first = span.first_element * TORCH_DTYPES[span.buffer.dtype].itemsize
        buffers[span.buffer][first : first + len(content)] = content
    return {buffer: bytes(content) for buffer, content in buffers.items()}


def as_bytes(buffers: Buffers) -> dict[Buffer, bytes]:
    return {buffer: tensor.view(-1).view(torch.uint8).numpy().tobytes() for buffer, tensor in buffers.items()}


def shift_data(folder: Path) -> None:
    """Longer headers by odd numbers of bytes: no tensor is aligned any more."""
    for number, path in enumerate(sorted(folder.glob("*.safetensors"))):
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = content[8:end] + b" " * (2 * number + 1)
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])


def write(folder: Path, layout: str, form: ExpertForm, odd: bool = False) -> LoadPlan:
    tensors = native_tensors(TINY, form, with_vision=True)
    if layout == "native":
        write_native(folder, tensors=tensors, shards=3, with_vision=True)
    else:
        stacked = form != "nvfp4"
        tensors = equal_gate_up_scales(tensors) if form == "fp8" else tensors
        tensors = {
            name: tensor.bfloat16() if name.endswith("_scale_inv") else tensor
            for name, tensor in hf_tensors(tensors, stacked=stacked).items()
        }
        write_hf(folder, tensors, text_config(), shards=3)
    if odd:
        shift_data(folder)
    return plan_load(folder)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("form", ["nvfp4", "fp8", "bf16"])
@pytest.mark.parametrize("layout", ["native", "hf"])
@pytest.mark.parametrize("staged", [False, True])
def test_every_way_gives_the_bytes_of_the_files(
    tmp_path: Path, layout: str, form: ExpertForm, staged: bool, odd: bool
) -> None:
    plan = write(tmp_path, layout, form, odd)
    expected = read_simply(plan)
    for chunk_bytes, num_readers, direct in [
        (ALIGNMENT, 1, False),
        (ALIGNMENT, 3, True),
        (5 * ALIGNMENT, 2, True),
        (1 << 24, 8, True),
    ]:
        buffers = allocate(plan)
        reading = Reading(chunk_bytes, num_readers, direct)
        fill(buffers, plan, reading=reading, make_copier=LateCopier if staged else None)
        assert as_bytes(buffers) == expected


def test_a_buffer_that_is_read_into_too_early_would_be_seen(tmp_path: Path) -> None:
    """A mutation: nobody waits for the copies out of a buffer before the next read into it."""
    plan = write(tmp_path, "native", "nvfp4")
    buffers = allocate(plan)

    class Forgetful(LateCopier):
        def __call__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Callable[[], None]:
            late.append(super().__call__(pairs))
            return lambda: None

    late: list[Callable[[], None]] = []
    fill(buffers, plan, reading=SMALL, make_copier=Forgetful)
    for wait in late:
        wait()
    assert as_bytes(buffers) != read_simply(plan)


def test_the_next_chunk_is_read_while_the_last_is_copied(tmp_path: Path) -> None:
    plan = write(tmp_path, "native", "nvfp4")
    events: list[str] = []

    class Telling(LateCopier):
        def __call__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Callable[[], None]:
            number = sum(event.startswith("copy") for event in events)
            events.append(f"copy {number}")
            wait = super().__call__(pairs)

            def told_wait() -> None:
                events.append(f"wait {number}")
                wait()

            return told_wait

    fill(allocate(plan), plan, reading=SMALL, make_copier=Telling)
    assert events[:6] == ["copy 0", "copy 1", "wait 0", "copy 2", "wait 1", "copy 3"]


def test_neighbouring_spans_are_one_read(tmp_path: Path) -> None:
    plan = write(tmp_path, "native", "nvfp4")
    chunks = cut_into_chunks(plan.spans, 1 << 24)
    assert [chunk.file for chunk in chunks] == list(plan.files.weight_files)
    assert sum(chunk.num_bytes for chunk in chunks) == plan.weights_bytes


def spans_at(*places: tuple[int, int]) -> list[Span]:
    """Spans of one file: (offset, bytes) each."""
    entry = TensorEntry("t", Path("f"), "U8", (1 << 30,), 0, 1 << 30)
    buffer = Buffer("b", Form.DENSE, Part.WEIGHT, "U8", (1 << 30,))
    return [Span(entry, offset, num_bytes, buffer, 0) for offset, num_bytes in places]


@pytest.mark.parametrize(
    ("places", "expected"),  # (begin, end) of the reads, of at most two blocks
    [
        ([(100, 50), (150, 50)], [(0, 200)]),
        ([(5000, 10_000)], [(4096, 12_288), (12_288, 15_000)]),
        ([(0, 10), (6000, 10)], [(0, 6010)]),  # a gap is read along
        ([(0, 10), (8192, 10)], [(0, 10), (8192, 8202)]),  # not if there is no room for what follows it
        ([(0, 10), (2 << 20, 10)], [(0, 10), (2 << 20, (2 << 20) + 10)]),
        ([(8000, 400), (8000, 400)], [(4096, 8400)]),  # two tensors of the engine from one of the file
        ([(4096, 8292), (4096, 8292)], [(4096, 12_288), (12_288, 12_388), (4096, 12_288), (12_288, 12_388)]),
        ([(10, 0)], []),
    ],
)  # fmt: skip
def test_chunks(places: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    chunks = cut_into_chunks(spans_at(*places), 2 * ALIGNMENT)
    assert [(chunk.begin, chunk.end) for chunk in chunks] == expected
    assert sum(chunk.num_bytes for chunk in chunks) == sum(num_bytes for _, num_bytes in places)
    for chunk in chunks:
        assert all(chunk.begin <= piece.offset for piece in chunk.pieces)
        assert all(piece.offset + piece.num_bytes <= chunk.end for piece in chunk.pieces)


@pytest.mark.parametrize("chunk_bytes", [0, 1000, ALIGNMENT + 1])
def test_chunk_size_that_cannot_be_aligned(chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="multiple of 4096"):
        cut_into_chunks([], chunk_bytes)


def test_progress_tells_every_byte_and_ends_complete(tmp_path: Path) -> None:
    write_native(tmp_path, shards=3, with_vision=True)
    plan = plan_load(tmp_path)
    reports: list[LoadProgress] = []
    load_planned(plan, progress=reports.append, reading=SMALL)
    used = sum(tensor.entry.num_bytes for tensor in plan.used)
    assert reports[-1].bytes_done == reports[-1].bytes_total == used
    done = [report.bytes_done for report in reports]
    assert done == sorted(done)
    assert 3 < len(done) <= 1001
    assert list(dict.fromkeys(report.file for report in reports)) == list(plan.files.weight_files)
    assert all(report.seconds >= 0 for report in reports)


class StopError(Exception):
    pass


@pytest.mark.parametrize("staged", [False, True])
def test_progress_can_end_the_reading(tmp_path: Path, staged: bool) -> None:
    plan = write(tmp_path, "native", "nvfp4")

    def stop(progress: LoadProgress) -> None:
        raise StopError

    reading = Reading(ALIGNMENT, 4)
    with pytest.raises(StopError):
        fill(allocate(plan), plan, stop, reading, LateCopier if staged else None)


def test_file_that_changed_since_its_header_was_read(tmp_path: Path) -> None:
    path = write_native(tmp_path) / "consolidated.safetensors"
    plan = plan_load(tmp_path)
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(CheckpointError, match=says(path, f"{size - 1:,} bytes", f"{size:,}", "start again")):
        load_planned(plan)


def test_file_that_vanished_since_its_header_was_read(tmp_path: Path) -> None:
    paths = sorted(write_native(tmp_path, shards=2).glob("*.safetensors"))
    plan = plan_load(tmp_path)
    paths[1].unlink()
    with pytest.raises(CheckpointError, match=says(paths[1], "cannot be read", "download it again")):
        load_planned(plan)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("size", [20_000, 20_480])  # amid a block, and at its end
def test_file_that_is_cut_while_it_is_read(tmp_path: Path, size: int, direct: bool) -> None:
    path = write_native(tmp_path) / "consolidated.safetensors"
    plan = plan_load(tmp_path)
    cut = min((span for span in plan.spans if span.offset + span.num_bytes > size), key=lambda span: span.offset)

    class Cutting(LateCopier):
        def __call__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Callable[[], None]:
            os.truncate(path, size)
            return super().__call__(pairs)

    with pytest.raises(CheckpointError, match=says(path, "is truncated", cut.tensor.name, f"{size:,}", "Download")):
        fill(allocate(plan), plan, reading=Reading(ALIGNMENT, 1, direct), make_copier=Cutting)


@pytest.mark.parametrize("staged", [False, True])
def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staged: bool) -> None:
    plan = write(tmp_path, "native", "nvfp4")
    read = os.preadv

    def fail(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if offset >= 8192:
            raise OSError(errno.EIO, "Input/output error")
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(weight_file.os, "preadv", fail)
    with pytest.raises(CheckpointError, match=says("consolidated", "at byte", "Input/output error", "disk")):
        fill(allocate(plan), plan, reading=Reading(ALIGNMENT, 2), make_copier=LateCopier if staged else None)


def test_reads_that_return_less_than_asked_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = write(tmp_path, "native", "nvfp4")
    expected = read_simply(plan)
    read = os.preadv
    monkeypatch.setattr(
        weight_file.os, "preadv", lambda descriptor, buffers, offset: read(descriptor, [buffers[0][:1000]], offset)
    )
    buffers = allocate(plan)
    fill(buffers, plan, reading=Reading(8192, 2, direct=False), make_copier=LateCopier)
    assert as_bytes(buffers) == expected


@pytest.mark.parametrize(("at", "number"), [("open", errno.EINVAL), ("read", errno.EINVAL), ("read", errno.EFAULT)])
def test_a_file_system_without_direct_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, number: int
) -> None:
    """It refuses the flag, or takes it and refuses to read. Pages are given back then."""
    plan = write(tmp_path, "native", "nvfp4")
    expected = read_simply(plan)
    opened, read = os.open, os.preadv
    refusing: set[int] = set()
    forgotten: list[int] = []

    def refuse_open(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT and at == "open":
            raise OSError(number, os.strerror(number))
        descriptor = opened(path, flags & ~os.O_DIRECT)
        if flags & os.O_DIRECT:
            refusing.add(descriptor)
        return descriptor

    def refuse_read(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if descriptor in refusing:
            refusing.discard(descriptor)
            raise OSError(number, os.strerror(number))
        return read(descriptor, buffers, offset)

    def advise(descriptor: int, offset: int, num_bytes: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            forgotten.append(num_bytes)

    monkeypatch.setattr(weight_file.os, "open", refuse_open)
    monkeypatch.setattr(weight_file.os, "preadv", refuse_read)
    monkeypatch.setattr(weight_file.os, "posix_fadvise", advise)
    buffers = allocate(plan)
    fill(buffers, plan, reading=Reading(ALIGNMENT, 1), make_copier=LateCopier)
    assert as_bytes(buffers) == expected
    assert sum(forgotten) >= plan.weights_bytes
