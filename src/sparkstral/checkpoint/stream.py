"""From disk into tensors: the spans of a plan, in file order, in large sequential reads.

Owns reading; must not know what a tensor is for. No memory map: page faults in the order of use read slowly,
and the mapped pages stay beside the copies. The only extra memory is one buffer of READ_BYTES.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from sparkstral.checkpoint.index import DTYPE_BYTES
from sparkstral.checkpoint.plan import Buffer, LoadPlan, Span
from sparkstral.errors import CheckpointError

READ_BYTES = 64 << 20  # large enough for full disk speed, small beside any memory plan
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
    file: Path
    seconds: float


def fill(
    buffers: Mapping[Buffer, Tensor], plan: LoadPlan, progress: Callable[[LoadProgress], None] | None = None
) -> None:
    """Read all spans of `plan` into `buffers` (contiguous, of the planned shapes and dtypes, on one device).

    Raises `CheckpointError` if a file cannot be read, or is shorter than its header said.
    """
    bytes_total = sum(span.num_bytes for span in plan.spans)
    started, bytes_done, bytes_reported = time.monotonic(), 0, 0
    staging = _allocate_staging(next(iter(buffers.values())).device)
    for path, spans in itertools.groupby(plan.spans, key=lambda span: span.tensor.file):
        with _open(path) as file:
            for span in spans:
                for num_bytes in _fill_span(file.fileno(), span, buffers[span.buffer], staging):
                    bytes_done += num_bytes
                    bytes_due = min(bytes_reported + bytes_total / _MAX_REPORTS, bytes_total)
                    if progress is not None and bytes_done >= bytes_due:
                        progress(LoadProgress(bytes_done, bytes_total, path, time.monotonic() - started))
                        bytes_reported = bytes_done


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read: {error.strerror}. Check its permissions and the disk, and download it again "
        "if it is damaged."
    )


def _allocate_staging(device: torch.device) -> Tensor | None:
    """Where bytes for a device wait, pinned; None for the CPU, whose tensors are read into directly."""
    return None if device.type == "cpu" else torch.empty(READ_BYTES, dtype=torch.uint8, pin_memory=True)


def _fill_span(file: int, span: Span, buffer: Tensor, staging: Tensor | None) -> Iterator[int]:
    """Fill one span, by way of `staging` if there is one; yield the bytes of each read."""
    flat = buffer.view(-1)
    if span.tensor.dtype != span.buffer.dtype:
        num_elements = span.num_bytes // DTYPE_BYTES[span.tensor.dtype]
        values = torch.empty(num_elements, dtype=TORCH_DTYPES[span.tensor.dtype])
        _read_into(file, span, 0, values.view(torch.uint8))
        flat[span.first_element : span.first_element + num_elements] = values.to(flat.dtype)
        yield span.num_bytes
        return
    first_byte = span.first_element * flat.element_size()
    target = flat.view(torch.uint8)[first_byte : first_byte + span.num_bytes]
    for start in range(0, span.num_bytes, READ_BYTES):
        part = target[start : start + READ_BYTES]
        if staging is None:
            _read_into(file, span, start, part)
        else:
            _read_into(file, span, start, staging[: len(part)])
            part.copy_(staging[: len(part)])
        yield len(part)


def _read_into(file: int, span: Span, start: int, target: Tensor) -> None:
    """Fill `target` (uint8, in this process' memory) from byte `start` of the span on."""
    view = target.numpy().data
    while view:
        try:
            num_bytes = os.preadv(file, [view], span.offset + start)
        except OSError as error:
            raise _unreadable(span.tensor.file, error) from error
        if num_bytes == 0:
            raise CheckpointError(
                f"{span.tensor.file} is truncated: tensor {span.tensor.name} ends at byte "
                f"{span.tensor.offset + span.tensor.num_bytes}, and the file before that. Download it again."
            )
        view, start = view[num_bytes:], start + num_bytes
