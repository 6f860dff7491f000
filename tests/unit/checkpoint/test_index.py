"""Headers: exact places of tensors, and a clear error for every way in which a weight file can be damaged."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sparkstral.checkpoint.index import read_header, read_index
from sparkstral.checkpoint.locate import locate
from sparkstral.errors import CheckpointError
from tests.support.messages import says
from tests.support.tiny_checkpoint import LFS_POINTER, native_tensors, write_native

AGAIN = "Delete it and download it again"


def write_file(path: Path, header: Any, num_data_bytes: int) -> Path:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + bytes(num_data_bytes))
    return path


def tensor(begin: int, end: int, dtype: str = "U8", shape: list[Any] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def test_each_entry_tells_where_its_bytes_are(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {
        "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "b": torch.arange(4, dtype=torch.float32),
        "c": torch.tensor(7, dtype=torch.uint8),
        "d": torch.rand(3, 5).to(torch.float8_e4m3fn),
    }
    save_file(tensors, path)
    entries, num_bytes = read_header(path)
    content = path.read_bytes()
    assert num_bytes == len(content)
    assert {entry.name: (entry.dtype, entry.shape) for entry in entries} == {
        "a": ("BF16", (2, 3)),
        "b": ("F32", (4,)),
        "c": ("U8", ()),
        "d": ("F8_E4M3", (3, 5)),
    }
    for entry in entries:
        found = content[entry.offset : entry.offset + entry.num_bytes]
        assert found == tensors[entry.name].reshape(-1).view(torch.uint8).numpy().tobytes()


def test_index_holds_the_tensors_of_all_shards(tmp_path: Path) -> None:
    tensors = native_tensors()
    index = read_index(locate(write_native(tmp_path, tensors=tensors, shards=3)))
    assert index.tensors.keys() == tensors.keys()
    assert len({entry.file for entry in index.tensors.values()}) == 3
    assert index.file_bytes == {path: path.stat().st_size for path in tmp_path.glob("*.safetensors")}


@pytest.mark.parametrize(
    ("header", "num_data_bytes", "message"),
    [
        ({"a": tensor(0, 8), "b": tensor(4, 12)}, 12, "tensor b overlaps the tensor before it"),
        ({"a": tensor(0, 8), "b": tensor(12, 16)}, 16, "tensor b leaves a gap before it"),
        ({"a": tensor(0, 8)}, 7, "is truncated: its header describes"),
        ({"a": tensor(0, 8)}, 9, "1 too many"),
        ({"a": tensor(0, 8, shape=[7])}, 8, "takes 7 bytes"),
        ({"a": tensor(-8, 0)}, 0, "damaged at tensor a"),
        ({"a": tensor(8, 0)}, 0, "damaged at tensor a"),
        ({"a": tensor(0, 8, shape=[-8])}, 8, "damaged at tensor a"),
        ({"a": tensor(0, 8, shape=["8"])}, 8, "damaged at tensor a"),
        ({"a": {"dtype": "U8", "shape": [8]}}, 8, "damaged at tensor a"),
        ({"a": 3}, 0, "damaged at tensor a"),
        ({"a": tensor(0, 8, dtype="F4")}, 8, "dtype F4"),
        (b'{"a": {}, "a": {}}', 0, "'a' is there twice"),
        (b"{", 0, "the header is damaged"),
        (b"\xff\xff", 0, "the header is damaged"),
        (b"[]", 0, "not a JSON object"),
    ],
)
def test_damaged_header(tmp_path: Path, header: Any, num_data_bytes: int, message: str) -> None:
    path = write_file(tmp_path / "model.safetensors", header, num_data_bytes)
    with pytest.raises(CheckpointError, match=says(path, message)):
        read_header(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"", "is truncated: it has 0 bytes"),
        (lambda content: content[:5], "is truncated: it has 5 bytes"),
        (lambda content: content[:100], "is truncated: its header alone"),
        (lambda content: content[:-1], "is truncated: its header describes"),
        (lambda content: b"<!DOCTYPE html>" + content, "is not a safetensors file"),
        (lambda content: LFS_POINTER, "is a Git LFS pointer"),
    ],
)
def test_file_that_is_not_whole(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    path = write_native(tmp_path) / "consolidated.safetensors"
    path.write_bytes(change(path.read_bytes()))
    remedy = "git lfs pull" if "LFS" in message else AGAIN
    with pytest.raises(CheckpointError, match=says(path, message, remedy)):
        read_index(locate(tmp_path))


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    write_native(tmp_path, shards=2, index=False)
    save_file({"norm.weight": torch.ones(64)}, tmp_path / "consolidated.safetensors")
    with pytest.raises(CheckpointError, match=says("norm.weight stands in", "and in", "mixed", "delete")):
        read_index(locate(tmp_path))


@pytest.mark.parametrize(
    ("name", "shard", "message"),
    [
        ("norm.weight", None, "norm.weight is in consolidated-0000"),
        ("ghost.weight", "consolidated-00001-of-00002.safetensors", "ghost.weight is in no file"),
        ("tok_embeddings.weight", "consolidated-00002-of-00002.safetensors", "not in consolidated-00002"),
    ],
)
def test_index_file_that_disagrees_with_the_headers(
    tmp_path: Path, name: str, shard: str | None, message: str
) -> None:
    path = write_native(tmp_path, shards=2) / "consolidated.safetensors.index.json"
    content = json.loads(path.read_text())
    content["weight_map"].pop(name, None)
    if shard is not None:
        content["weight_map"][name] = shard
    path.write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=says(path, "disagree about 1 of", message, "from one revision")
    ):
        read_index(locate(tmp_path))
