"""This process as the kernel sees it: who is to be killed first, and what the heap holds for nothing.

Owns these two requests to the system, which are wishes: where they cannot be had, nothing happens. Must not know why.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

OOM_SCORE_ADJ = 500
"""Of -1000 to 1000: the engine is what is large and can be started again, so that it goes before a shell or a
desktop. Raising it needs no privilege. Source: proc(5)."""


def prefer_as_victim(path: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Let the kernel, if it must kill, kill this process before smaller ones; one that is preferred more stays so."""
    with suppress(OSError, ValueError):
        if int(path.read_text()) < OOM_SCORE_ADJ:
            path.write_text(str(OOM_SCORE_ADJ))


def release_free_heap() -> None:
    """Give free pieces of the C heap back to the system, where the C library can (malloc_trim(3))."""
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
