"""Which files of a folder are the checkpoint, and in which of the two layouts.

Owns file names and the errors about missing, unfinished and foreign files; must not know what is inside the
weights.
Source: docs/model.md section 3 (the files of the NVFP4 and FP8 releases).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sparkstral.checkpoint.config_file import read_json_object, refuse_lfs_pointer
from sparkstral.errors import CheckpointError

EXAMPLE_HUB_ID = "mistralai/Mistral-Small-4-119B-2603-NVFP4"
TOKENIZER_FILE = "tekken.json"

_DOWNLOAD = f"`hf download {EXAMPLE_HUB_ID} --local-dir FOLDER`"
_DOWNLOAD_AGAIN = f"Run the download again to complete it ({_DOWNLOAD} resumes where it stopped)."
_FOREIGN_WEIGHTS = ("*.gguf", "*.bin", "*.pt", "*.pth")
_UNFINISHED = (".incomplete", ".aria2", ".part", ".crdownload")
_NUMBERED_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors")
_HUB_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_MAX_NAMES_SHOWN = 3


class Layout(StrEnum):
    NATIVE = "native"
    HF = "hf"


@dataclass(frozen=True, slots=True)
class _FileNames:
    config: str
    weights: str  # a glob
    index: str


_FILE_NAMES = {
    Layout.NATIVE: _FileNames(
        "params.json", "consolidated*.safetensors", "consolidated.safetensors.index.json"
    ),
    Layout.HF: _FileNames("config.json", "model*.safetensors", "model.safetensors.index.json"),
}


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files of one checkpoint. All of them exist."""

    folder: Path
    layout: Layout
    config_file: Path
    weight_files: tuple[Path, ...]  # by name
    index_file: Path | None
    weight_map: Mapping[str, str] | None  # what the index file says: tensor name → file name


def is_hub_id(text: str) -> bool:
    """Whether `text` has the form owner/name of a model on the Hub (a folder may be called so too)."""
    parts = text.split("/")
    return len(parts) == 2 and all(
        _HUB_NAME.fullmatch(part) and "--" not in part and ".." not in part for part in parts
    )


def list_names(names: Iterable[object]) -> str:
    """The first few of `names` for a message, and how many more there are."""
    all_names = [str(name) for name in names]
    more = len(all_names) - _MAX_NAMES_SHOWN
    return ", ".join(all_names[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def locate(folder: Path) -> CheckpointFiles:
    """The checkpoint in `folder`; the native layout if both are there, as that is how the model is released.

    Raises `CheckpointError` naming what is missing or in the way, and the remedy. No weights are opened.
    """
    _check_folder(folder)
    layout = _find_layout(folder)
    names = _FILE_NAMES[layout]
    index_file = folder / names.index if (folder / names.index).exists() else None
    weight_map = _read_weight_map(index_file) if index_file else None
    present = {path.name for path in folder.glob(names.weights)}
    if index_file and weight_map:
        wanted = set(weight_map.values())
        if extra := sorted(present - wanted):
            raise CheckpointError(
                f"{index_file} does not name {list_names(extra)}, which {'is' if len(extra) == 1 else 'are'} "
                "in the same folder. Two downloads seem to be mixed: delete what does not belong, or "
                "download into an empty folder."
            )
        named_by = f"that {index_file.name} names"
    else:
        wanted = present | {name for shard in present for name in _numbered_siblings(shard)}
        named_by = "that the others' names promise"
    if missing := sorted(name for name in wanted if not (folder / name).is_file()):
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(wanted)} weight files {named_by}: "
            f"{list_names(missing)}. {_unfinished_note(folder)}{_DOWNLOAD_AGAIN}"
        )
    for name in sorted(wanted):
        for suffix in _UNFINISHED:
            if (folder / (name + suffix)).exists():
                raise CheckpointError(
                    f"{folder / name} is not finished: {name}{suffix} beside it belongs to a download that "
                    "stopped. Run that download again until it ends, or delete both files and start anew."
                )
    return CheckpointFiles(
        folder=folder,
        layout=layout,
        config_file=folder / names.config,
        weight_files=tuple(folder / name for name in sorted(wanted)),
        index_file=index_file,
        weight_map=weight_map,
    )


def locate_tokenizer(folder: Path) -> Path:
    """`tekken.json` in `folder`, unread. Raises `CheckpointError` if it is missing, empty or a pointer."""
    _check_folder(folder)
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        also = " (tokenizer.json is there, but it cannot keep control tokens apart from text)"
        raise CheckpointError(
            f"{folder} has no {TOKENIZER_FILE}{also if (folder / 'tokenizer.json').is_file() else ''}. Copy "
            f"it from the model's repository: `hf download {EXAMPLE_HUB_ID} {TOKENIZER_FILE} --local-dir "
            f"{folder}`."
        )
    with path.open("rb") as file:
        start = file.read(64)
    refuse_lfs_pointer(path, start)
    if not start:
        raise CheckpointError(f"{path} is empty. Download it again.")
    return path


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise CheckpointError(
            f"The folder {folder} does not exist. Give the folder of a downloaded checkpoint, or a Hub id "
            f"such as {EXAMPLE_HUB_ID}."
        )
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file. Give the folder that holds it: {folder.parent}.")


def _find_layout(folder: Path) -> Layout:
    has_weights = {
        layout: (folder / names.index).exists() or any(folder.glob(names.weights))
        for layout, names in _FILE_NAMES.items()
    }
    for layout, names in _FILE_NAMES.items():
        if has_weights[layout] and (folder / names.config).exists():
            return layout
    for layout, names in _FILE_NAMES.items():
        if has_weights[layout]:
            raise CheckpointError(
                f"{folder} has weights ({names.weights}) but no {names.config}, which says what model they "
                "are. Copy it from the repository that the weights came from: `hf download REPOSITORY "
                f"{names.config} --local-dir {folder}`."
            )
    raise CheckpointError(_no_weights_message(folder))


def _no_weights_message(folder: Path) -> str:
    expected = " or ".join(f"{names.config} with {names.weights}" for names in _FILE_NAMES.values())
    if snapshots := sorted((folder / "snapshots").glob("*")):
        return f"{folder} is a repository of the Hub's cache. Give the snapshot in it: {snapshots[-1]}."
    if foreign := sorted(path.name for pattern in _FOREIGN_WEIGHTS for path in folder.glob(pattern)):
        return (
            f"{folder} holds weights in a format that this engine does not read ({list_names(foreign)}). It "
            f"reads safetensors: {expected}. The released model is one: {_DOWNLOAD}."
        )
    if note := _unfinished_note(folder):
        return f"{folder} holds no finished weight file. {note}{_DOWNLOAD_AGAIN}"
    if not any(folder.iterdir()):
        return f"{folder} is empty. Download a checkpoint into it: {_DOWNLOAD}."
    found = list_names(sorted(path.name for path in folder.iterdir()))
    return (
        f"{folder} holds no weights: expected {expected}, found {found}. If the checkpoint is in a folder "
        f"below, give that one; otherwise download it: {_DOWNLOAD}."
    )


def _unfinished_note(folder: Path) -> str:
    """A sentence about traces of a download that did not end, or nothing."""
    places = [folder, folder / ".cache" / "huggingface" / "download"]
    if folder.parent.name == "snapshots":  # the Hub's cache
        places.append(folder.parent.parent / "blobs")
    traces = sorted(path for place in places for suffix in _UNFINISHED for path in place.glob(f"*{suffix}"))
    if not traces:
        return ""
    return f"A download did not finish: {list_names(path.name for path in traces)} in {traces[0].parent}. "


def _numbered_siblings(shard: str) -> list[str]:
    """All names of the series of "X-00002-of-00013.safetensors"; none for a name without numbers."""
    match = _NUMBERED_SHARD.fullmatch(shard)
    if match is None:
        return []
    stem, count = match.groups()
    return [f"{stem}-{number:05d}-of-{count}.safetensors" for number in range(1, int(count) + 1)]


def _read_weight_map(index_file: Path) -> dict[str, str]:
    weight_map = read_json_object(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index_file} has no weight_map from tensor names to files. Download this file again."
        )
    for shard in dict.fromkeys(map(str, weight_map.values())):
        if not shard.endswith(".safetensors") or Path(shard).name != shard:
            raise CheckpointError(
                f"{index_file} says that tensors are in {shard!r}, which is not the name of a .safetensors "
                "file in the same folder. Download this file again."
            )
    return weight_map
