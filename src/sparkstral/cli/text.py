"""Text that comes from outside: standard input, arguments, JSON files. What is no text is refused by its place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sparkstral.errors import ConfigError


def read_stdin() -> str:
    """All of standard input; nothing if it is closed. Raises ConfigError if it is not UTF-8."""
    if sys.stdin is None:
        return ""
    try:
        return require_text(sys.stdin.read(), "Standard input")
    except UnicodeDecodeError:
        raise _no_text("Standard input") from None


def require_text(text: str, place: str) -> str:
    """`text` itself. Raises ConfigError if it holds bytes that Python could not decode and only keeps."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _no_text(place) from None
    return text


def read_json_file(path: Path, flag: str) -> Any:
    """The file's value, read as the server reads a body. Raises ConfigError naming the flag."""
    try:
        return from_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{flag} {path}: not JSON in UTF-8: {error}") from error


def _no_text(place: str) -> ConfigError:
    return ConfigError(f"{place} is not text in UTF-8.")
