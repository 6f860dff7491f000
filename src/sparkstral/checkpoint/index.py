"""What tensors the weight files hold, by their headers alone: no data is loaded.

Owns the safetensors container (8 bytes little-endian header length, a JSON header, then the data); must not
know what a tensor's name means. Read here rather than by the safetensors package because each tensor's file,
offset and byte count must be exact, and damage must be told in words.
Source: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkstral.checkpoint.config_file import refuse_lfs_pointer
from sparkstral.checkpoint.locate import CheckpointFiles, list_names
from sparkstral.errors import CheckpointError
from sparkstral.units import format_bytes

DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_AGAIN = "Delete it and download it again."


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as it stands in a file: `num_bytes` bytes from `offset` on, row-major, little-endian."""

    name: str
    file: Path
    dtype: str  # the format's code: BF16, F8_E4M3, U8 …
    shape: tuple[int, ...]
    offset: int  # from the beginning of the file
    num_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    tensors: Mapping[str, TensorEntry]  # by name
    file_bytes: Mapping[Path, int]  # size of each weight file


def read_index(files: CheckpointFiles) -> CheckpointIndex:
    """The headers of all weight files, checked against one another and against the index file if any.

    Raises `CheckpointError` for a damaged or truncated file, a tensor that stands in two files, and headers
    that disagree with the index file.
    """
    tensors: dict[str, TensorEntry] = {}
    file_bytes: dict[Path, int] = {}
    for path in files.weight_files:
        entries, file_bytes[path] = read_header(path)
        for entry in entries:
            if (other := tensors.get(entry.name)) is not None:
                raise CheckpointError(
                    f"Tensor {entry.name} stands in {other.file} and in {path}. Two downloads seem to be "
                    "mixed: delete the files that do not belong, or download into an empty folder."
                )
            tensors[entry.name] = entry
    if files.weight_map is not None:
        _compare(files, tensors, files.weight_map)
    return CheckpointIndex(tensors, file_bytes)


def _compare(
    files: CheckpointFiles, tensors: Mapping[str, TensorEntry], weight_map: Mapping[str, str]
) -> None:
    differences = [
        *(
            f"{name} is in no file (said to be in {shard})"
            for name, shard in weight_map.items()
            if name not in tensors
        ),
        *(
            f"{entry.name} is in {entry.file.name} but not in the index"
            for entry in tensors.values()
            if entry.name not in weight_map
        ),
        *(
            f"{name} is in {tensors[name].file.name}, not in {shard}"
            for name, shard in weight_map.items()
            if name in tensors and tensors[name].file.name != shard
        ),
    ]
    if differences:
        raise CheckpointError(
            f"{files.index_file} and the weight files' headers disagree about {len(differences)} of "
            f"{len(weight_map)} tensors: {list_names(differences)}. Index and weights come from different "
            "downloads or revisions; download them again from one revision."
        )


def read_header(path: Path) -> tuple[list[TensorEntry], int]:
    """The tensors of one file in the order of their offsets, and the file's size in bytes.

    Raises `CheckpointError` unless the header is sound and the data that it describes fills the file exactly.
    """
    try:
        file_size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_LENGTH_BYTES + 64)
            refuse_lfs_pointer(path, start)
            header_bytes = int.from_bytes(start[:_LENGTH_BYTES], "little")
            if len(start) < _LENGTH_BYTES:
                raise CheckpointError(
                    f"{path} is truncated: it has {file_size} bytes, too few for any tensor. {_AGAIN}"
                )
            if header_bytes > _MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"{path} is not a safetensors file: its first 8 bytes give a header of {header_bytes} "
                    f"bytes, and the format allows {_MAX_HEADER_BYTES}. {_AGAIN}"
                )
            if _LENGTH_BYTES + header_bytes > file_size:
                raise CheckpointError(
                    f"{path} is truncated: its header alone has {header_bytes} bytes, the whole file "
                    f"{file_size}. {_AGAIN}"
                )
            file.seek(_LENGTH_BYTES)
            header = file.read(header_bytes)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. Check its permissions and the disk."
        ) from error
    data_start = _LENGTH_BYTES + header_bytes
    entries = _parse_header(path, header, data_start)
    expected_size = data_start
    for entry in entries:
        if entry.offset != expected_size:
            what = (
                "overlaps the tensor before it" if entry.offset < expected_size else "leaves a gap before it"
            )
            raise CheckpointError(
                f"{path}: tensor {entry.name} {what} (it begins at byte {entry.offset}, and the one before "
                f"ends at {expected_size}). The file is damaged. {_AGAIN}"
            )
        expected_size += entry.num_bytes
    if file_size < expected_size:
        raise CheckpointError(
            f"{path} is truncated: its header describes {expected_size} bytes and the file has {file_size} "
            f"({format_bytes(expected_size - file_size)} are missing). {_AGAIN}"
        )
    if file_size > expected_size:
        raise CheckpointError(
            f"{path} is damaged: its header describes {expected_size} bytes and the file has {file_size}, "
            f"{file_size - expected_size} too many. {_AGAIN}"
        )
    return entries, file_size


def _parse_header(path: Path, header: bytes, data_start: int) -> list[TensorEntry]:
    try:
        values = json.loads(header, object_pairs_hook=_refuse_duplicates)
    except ValueError as error:
        raise CheckpointError(f"{path}: the header is damaged: {error}. {_AGAIN}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: the header is damaged: it is not a JSON object. {_AGAIN}")
    values.pop("__metadata__", None)
    entries = [_parse_entry(path, name, value, data_start) for name, value in values.items()]
    return sorted(entries, key=lambda entry: (entry.offset, entry.num_bytes))


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return values


def _parse_entry(path: Path, name: str, value: Any, data_start: int) -> TensorEntry:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if all(
            type(size) is int and size >= 0 for size in shape
        ):
            pass
        case _:
            raise CheckpointError(f"{path}: the header is damaged at tensor {name}: {value!r}. {_AGAIN}")
    if dtype not in DTYPE_BYTES:
        raise CheckpointError(
            f"{path}: tensor {name} has dtype {dtype}, which this engine does not know "
            f"({', '.join(DTYPE_BYTES)}). Use a checkpoint in BF16, FP8 or NVFP4."
        )
    num_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if begin < 0 or end - begin != num_bytes:
        raise CheckpointError(
            f"{path}: the header is damaged at tensor {name}: {dtype} {shape} takes {num_bytes} bytes, and "
            f"the offsets {begin} to {end} leave {end - begin}. {_AGAIN}"
        )
    return TensorEntry(name, path, dtype, tuple(shape), data_start + begin, num_bytes)
