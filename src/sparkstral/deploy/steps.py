"""A deployment as a value: files to write, commands to run. Shown as what a person would type; applied in order."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkstral.errors import SparkstralError


@dataclass(frozen=True, slots=True)
class FileToWrite:
    path: Path
    content: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return shlex.join(self.words)


@dataclass(frozen=True, slots=True)
class Deployment:
    title: str
    files: tuple[FileToWrite, ...] = ()
    commands: tuple[Command, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def document(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "files": [{"path": str(file.path), "content": file.content} for file in self.files],
            "commands": [{"command": list(command.words), "why": command.why} for command in self.commands],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Everything that would be done, files in full."""
        parts = [f"# {self.title}"]
        parts += [f"\n# ---- {file.path} ----\n{file.content}" for file in self.files]
        parts += [f"\n# {command.why}\n{command}" for command in self.commands]
        parts += [f"\n# {note}" for note in self.notes]
        return "\n".join(parts)


def _run(words: Sequence[str]) -> int:
    return subprocess.run(words, check=False).returncode


def apply(deployment: Deployment, run: Callable[[Sequence[str]], int] = _run) -> None:
    """Write the files and run the commands. Raises SparkstralError at the first that fails, with what was left out."""
    for file in deployment.files:
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            file.path.write_text(file.content)
            file.path.chmod(file.mode)
        except OSError as error:
            raise SparkstralError(
                f"{file.path} cannot be written: {error.strerror}. Nothing was started. Run it with sudo, or "
                "name a place of your own."
            ) from error
    for number, command in enumerate(deployment.commands):
        try:
            code = run(command.words)
        except OSError as error:
            raise SparkstralError(f"{command.words[0]} cannot be run: {error.strerror}. Install it first.") from error
        if code:
            rest = len(deployment.commands) - number - 1
            left = f"; {rest} more steps were left out" if rest else ""
            raise SparkstralError(f"`{command}` ended with exit code {code}{left}. Its own words are above.")
