"""The hashes that a download left beside its files: what a deep check compares with, without asking the Hub.

Owns where they stand. In the Hub's cache a file's name is a link to a blob that is called by its sha256 (or, for small
files, by a git hash, which is not one); in a folder of one's own, .cache/huggingface/download has a note for each file,
whose second line is the same.
"""

from __future__ import annotations

import re
from pathlib import Path

_SHA256 = re.compile(r"[0-9a-f]{64}")


def recorded_sha256(path: Path) -> str | None:
    """Of the file as the Hub had it; None where nobody wrote it down."""
    if path.is_symlink():
        name = path.resolve().name
    else:
        note = path.parent / ".cache" / "huggingface" / "download" / f"{path.name}.metadata"
        try:
            name = note.read_text(encoding="utf-8").splitlines()[1].strip()
        except (OSError, IndexError, UnicodeDecodeError):
            return None
    return name if _SHA256.fullmatch(name) else None
