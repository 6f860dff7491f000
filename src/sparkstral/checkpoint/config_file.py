"""A JSON file of a checkpoint, read strictly: each key is taken, named as ignored, or refused.

Owns the errors about missing, mistyped and unknown keys; must not know what the keys mean
(names_native, names_hf).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkstral.errors import CheckpointError

LFS_POINTER_START = b"version https://git-lfs.github.com/spec/"


def refuse_lfs_pointer(path: Path, first_bytes: bytes) -> None:
    """Raise `CheckpointError` if a file is only Git LFS's note of what should stand there."""
    if first_bytes.startswith(LFS_POINTER_START):
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the file itself. Fetch the contents with `git lfs pull` in "
            "that folder, or download the checkpoint again with `hf download`."
        )


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises `CheckpointError` if it cannot be read or is something else."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    refuse_lfs_pointer(path, content)
    try:
        values = json.loads(content)
    except ValueError as error:  # bad UTF-8 included
        raise CheckpointError(
            f"{path} is not valid JSON ({len(content)} bytes): {error}. The download may be incomplete; "
            "fetch this file again."
        ) from error
    if not isinstance(values, dict):
        raise CheckpointError(
            f"{path} holds a JSON {type(values).__name__} where an object is expected. Fetch it again."
        )
    return values


class Section:
    """One JSON object of a configuration file. Take its keys one by one, then call `finish`."""

    def __init__(self, path: Path, values: Mapping[str, Any], name: str = "") -> None:
        self.path = path
        self._values = values
        self._name = name
        self._known: set[str] = set()

    def _spell(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def _take(self, key: str, wanted: str) -> Any:
        self._known.add(key)
        if key not in self._values:
            raise CheckpointError(
                f"{self.path}: {self._spell(key)} is missing ({wanted} is expected). "
                "Take this file from the same repository as the weights."
            )
        return self._values[key]

    def _mistyped(self, key: str, found: object, wanted: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: {self._spell(key)} is {found!r}, and {wanted} is expected. "
            "Take this file from the same repository as the weights."
        )

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def integer(self, key: str, minimum: int = 1) -> int:
        """A required integer of at least `minimum`."""
        wanted = f"an integer of at least {minimum}"
        found = self._take(key, wanted)
        if type(found) is not int or found < minimum:
            raise self._mistyped(key, found, wanted)
        return found

    def number(self, key: str) -> float:
        """A required finite number above 0."""
        wanted = "a positive number"
        found = self._take(key, wanted)
        if type(found) not in (int, float) or not math.isfinite(found) or found <= 0:
            raise self._mistyped(key, found, wanted)
        return float(found)

    def text(self, key: str) -> str:
        """A required string."""
        found = self._take(key, "a text")
        if not isinstance(found, str):
            raise self._mistyped(key, found, "a text")
        return found

    def section(self, key: str) -> Section:
        """A required JSON object."""
        found = self._take(key, "an object")
        if not isinstance(found, dict):
            raise self._mistyped(key, found, "an object")
        return Section(self.path, found, self._spell(key))

    def constants(self, expected: Mapping[str, object]) -> None:
        """Required keys that have one value only in this family of models."""
        for key, value in expected.items():
            found = self._take(key, repr(value))
            if found != value:
                raise CheckpointError(
                    f"{self.path}: {self._spell(key)} is {found!r}, and this engine computes only {value!r}. "
                    "It serves Mistral Small 4 (and the demo of its family); this file describes another model."
                )

    def constants_if_present(self, expected: Mapping[str, object]) -> None:
        """Keys that may be absent, and have one value only where they are not."""
        self.constants({key: value for key, value in expected.items() if key in self})
        self.ignore(*expected)

    def ignore(self, *keys: str) -> None:
        """Keys that may be there and change nothing of what this engine computes."""
        self._known.update(keys)

    def ignore_if_off(self) -> None:
        """Accept unknown keys that are null, false or empty: what is switched off changes nothing."""
        self._known.update(key for key, value in self._values.items() if value in (None, False, "", [], {}))

    def finish(self) -> None:
        """Raise `CheckpointError` if the object has a key that was neither taken nor ignored."""
        for key in self._values:
            if key not in self._known:
                nearest = difflib.get_close_matches(key, sorted(self._known), n=1)
                hint = f" (the nearest known name is {self._spell(nearest[0])})" if nearest else ""
                raise CheckpointError(
                    f"{self.path}: {self._spell(key)} = {self._values[key]!r} is unknown to this "
                    f"engine{hint}, so it cannot tell what the model would compute. Take the file from the "
                    "model's own repository, or remove the key if you know that it changes nothing."
                )
