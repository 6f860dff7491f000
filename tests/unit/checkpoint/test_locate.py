"""Finding the files: which layout; and one clear error, with file and remedy, for each thing missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkstral.checkpoint.locate import Layout, is_hub_id, locate, locate_tokenizer
from sparkstral.errors import CheckpointError
from tests.support.messages import says
from tests.support.tiny_checkpoint import (
    LFS_POINTER,
    TINY,
    hf_tensors,
    native_tensors,
    text_config,
    write_hf,
    write_native,
)


@pytest.fixture
def native(tmp_path: Path) -> Path:
    return write_native(tmp_path / "native", shards=3)


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    tensors = hf_tensors(native_tensors(TINY, "bf16"), stacked=True)
    return write_hf(tmp_path / "hf", tensors, text_config(), shards=2)


def test_native_layout_with_index(native: Path) -> None:
    files = locate(native)
    assert files.layout is Layout.NATIVE
    assert files.config_file == native / "params.json"
    assert files.index_file == native / "consolidated.safetensors.index.json"
    assert [path.name for path in files.weight_files] == [
        f"consolidated-{shard:05d}-of-00003.safetensors" for shard in (1, 2, 3)
    ]


def test_native_layout_in_one_file_without_index(tmp_path: Path) -> None:
    files = locate(write_native(tmp_path, index=False))
    assert files.index_file is None
    assert files.weight_map is None
    assert files.weight_files == (tmp_path / "consolidated.safetensors",)


def test_hf_layout(hf: Path) -> None:
    files = locate(hf)
    assert files.layout is Layout.HF
    assert files.config_file == hf / "config.json"
    assert len(files.weight_files) == 2


def test_native_layout_wins_where_both_are_whole(native: Path) -> None:
    write_hf(native, hf_tensors(native_tensors(TINY, "bf16"), stacked=True), text_config())
    assert locate(native).layout is Layout.NATIVE


def test_hf_layout_beside_a_lone_params_json(hf: Path) -> None:
    (hf / "params.json").write_text("{}")
    assert locate(hf).layout is Layout.HF


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=says(tmp_path / "none", "does not exist", "Hub id")):
        locate(tmp_path / "none")


def test_file_instead_of_folder(native: Path) -> None:
    with pytest.raises(CheckpointError, match=says("params.json", "is a file", "Give the folder", native)):
        locate(native / "params.json")


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=says(tmp_path, "is empty", "hf download")):
        locate(tmp_path)


def test_folder_without_weights_tells_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    with pytest.raises(
        CheckpointError, match=says(tmp_path, "no weights", "params.json", "README.md", "hf download")
    ):
        locate(tmp_path)


@pytest.mark.parametrize(("config", "layout"), [("params.json", "native"), ("config.json", "hf")])
def test_missing_configuration(config: str, layout: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(layout)
    (folder / config).unlink()
    with pytest.raises(
        CheckpointError, match=says(folder, f"no {config}", f"hf download REPOSITORY {config}")
    ):
        locate(folder)


@pytest.mark.parametrize("index", [True, False])
def test_missing_shard(tmp_path: Path, index: bool) -> None:
    write_native(tmp_path, shards=3, index=index)
    lost = tmp_path / "consolidated-00002-of-00003.safetensors"
    lost.unlink()
    with pytest.raises(
        CheckpointError, match=says(tmp_path, "lacks 1 of the 3", lost.name, "hf download", "resumes")
    ):
        locate(tmp_path)


def test_link_whose_target_is_gone_is_a_missing_shard(native: Path) -> None:
    shard = native / "consolidated-00002-of-00003.safetensors"
    shard.unlink()
    shard.symlink_to(native / "gone")
    with pytest.raises(CheckpointError, match=says("lacks 1 of the 3", shard.name)):
        locate(native)


@pytest.mark.parametrize("trace", [".cache/huggingface/download/abc.incomplete", "x.safetensors.part"])
def test_missing_shard_of_an_unfinished_download(native: Path, trace: str) -> None:
    (native / "consolidated-00003-of-00003.safetensors").unlink()
    (native / trace).parent.mkdir(parents=True, exist_ok=True)
    (native / trace).touch()
    with pytest.raises(CheckpointError, match=says("lacks 1", "did not finish", Path(trace).name, "resumes")):
        locate(native)


def test_unfinished_download_in_the_hub_cache(tmp_path: Path, native: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "params.json").symlink_to(native / "params.json")
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    (blobs / "0123.incomplete").touch()
    with pytest.raises(CheckpointError, match=says(snapshot, "did not finish", "0123.incomplete", "resumes")):
        locate(snapshot)


def test_shard_that_a_downloader_has_not_finished(native: Path) -> None:
    (native / "consolidated-00001-of-00003.safetensors.aria2").touch()
    with pytest.raises(
        CheckpointError, match=says("consolidated-00001", "not finished", "Run that download again")
    ):
        locate(native)


def test_repository_folder_of_the_hub_cache(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "0123abcd").mkdir(parents=True)
    with pytest.raises(
        CheckpointError, match=says(tmp_path, "Hub's cache", tmp_path / "snapshots" / "0123abcd")
    ):
        locate(tmp_path)


@pytest.mark.parametrize("name", ["model-Q4_K_M.gguf", "pytorch_model.bin", "consolidated.00.pth"])
def test_weights_in_a_format_that_is_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=says(tmp_path, "does not read", name, "safetensors", "hf download")
    ):
        locate(tmp_path)


def test_shard_that_the_index_does_not_name(native: Path) -> None:
    (native / "consolidated-00004-of-00004.safetensors").touch()
    with pytest.raises(
        CheckpointError, match=says("index.json", "does not name consolidated-00004", "delete")
    ):
        locate(native)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "holds a JSON list"),
        (b"{}", "no weight_map"),
        (b'{"weight_map": {"a": 1}}', "are in '1'"),
        (b'{"weight_map": {"a": "../x.safetensors"}}', "are in '../x.safetensors'"),
        (LFS_POINTER, "Git LFS pointer"),
    ],
)
def test_damaged_index_file(native: Path, content: bytes, message: str) -> None:
    path = native / "consolidated.safetensors.index.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=says(path, message)):
        locate(native)


def test_tokenizer_is_found(native: Path) -> None:
    (native / "tekken.json").write_text(json.dumps({"config": {}}))
    assert locate_tokenizer(native) == native / "tekken.json"


def test_missing_tokenizer(native: Path) -> None:
    with pytest.raises(CheckpointError, match=says(native, "no tekken.json", "hf download", "tekken.json")):
        locate_tokenizer(native)


def test_missing_tokenizer_beside_tokenizer_json(native: Path) -> None:
    (native / "tokenizer.json").touch()
    with pytest.raises(
        CheckpointError, match=says(native, "no tekken.json", "tokenizer.json is there", "hf download")
    ):
        locate_tokenizer(native)


@pytest.mark.parametrize(("content", "message"), [(LFS_POINTER, "Git LFS pointer"), (b"", "is empty")])
def test_tokenizer_that_is_none(native: Path, content: bytes, message: str) -> None:
    (native / "tekken.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=says(native / "tekken.json", message)):
        locate_tokenizer(native)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mistralai/Mistral-Small-4-119B-2603-NVFP4", True),
        ("a/b", True),
        ("demo", False),
        ("./a/b", False),
        ("/a/b", False),
        ("../b", False),
        ("a/b/c", False),
        ("a/", False),
        ("a/b.", False),
        ("a/b..c", False),
        ("a/b--c", False),
        ("a b/c", False),
        ("", False),
    ],
)
def test_what_is_a_hub_id(text: str, expected: bool) -> None:
    assert is_hub_id(text) is expected
