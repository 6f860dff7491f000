"""The checkpoint's files: whole by their headers, by their hashes with --deep, and how fast their disk is."""

from __future__ import annotations

from pathlib import Path

from sparkstral.checkpoint.index import read_index
from sparkstral.checkpoint.locate import locate, locate_tokenizer
from sparkstral.doctor.check import Check, absent, bad, ok, warn
from sparkstral.doctor.machine import Machine
from sparkstral.errors import CheckpointError
from sparkstral.hub.download import sha256_of
from sparkstral.hub.recorded import recorded_sha256
from sparkstral.units import format_bytes, format_seconds

GOOD_BYTES_PER_S = 2e9  # 70 GB in 35 s; a Spark's own disk reads 5 GB/s
_NO_MODEL = "no MODEL was named"


def check_checkpoint(folder: Path | None, missing: str = _NO_MODEL) -> Check:
    """Every file there, none truncated, headers and index of one mind, the tokenizer beside them."""
    name = "checkpoint"
    if folder is None:
        return absent(name, missing, "sparkstral doctor FOLDER; or sparkstral download" if missing == _NO_MODEL else "")
    try:
        files = locate(folder)
        index = read_index(files)
        locate_tokenizer(folder)
    except CheckpointError as error:
        evidence, _, remedy = str(error).partition(". ")
        return bad(name, evidence, remedy or "Download it again: sparkstral download.")
    total = format_bytes(sum(index.file_bytes.values()))
    return ok(name, f"{folder}: {len(index.file_bytes)} weight files, {len(index.tensors):,} tensors, {total}, whole")


def check_hashes(folder: Path | None, deep: bool) -> Check:
    name = "hashes"
    if folder is None or not deep:
        return absent(name, _NO_MODEL if folder is None else "not asked for (--deep reads all of it)")
    try:
        files = locate(folder).weight_files
        unknown = [path.name for path in files if recorded_sha256(path) is None]
        wrong = [path.name for path in files if (known := recorded_sha256(path)) and sha256_of(path) != known]
    except (CheckpointError, OSError) as error:
        return bad(name, str(error), "Download it again: sparkstral download.")
    if wrong:
        return bad(
            name, f"{', '.join(wrong)}: not what the Hub had",
            "Remove what is damaged and download it again: sparkstral download --deep does both.",
        )  # fmt: skip
    if len(unknown) == len(files):
        return absent(name, "nobody wrote down what the files' hashes are; sparkstral download does")
    rest = f", {len(unknown)} unknown" if unknown else ""
    return ok(name, f"{len(files) - len(unknown)} of {len(files)} are what the Hub had{rest}")


def check_disk(machine: Machine, folder: Path | None) -> Check:
    name = "disk"
    files = [] if folder is None else sorted(folder.glob("*.safetensors"), key=lambda path: -path.stat().st_size)
    speed = machine.read_speed(files[0]) if files else None
    if speed is None:
        return absent(name, _NO_MODEL if folder is None else "the files are too small to measure it with")
    seconds = format_seconds(sum(path.stat().st_size for path in files) / speed)
    found = f"{speed / 1e9:.1f} GB/s past the page cache: loading takes {seconds} at least"
    if speed < GOOD_BYTES_PER_S:
        return warn(name, found, "Put the model on the machine's own NVMe disk; a network or USB disk is slow.")
    return ok(name, found)
