"""Quantities in words: binary bytes, durations. Pure functions; standard library only."""

from __future__ import annotations

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30


def format_bytes(num_bytes: int) -> str:
    """`num_bytes` in the largest binary unit below it: 1536 → "1.50 KiB"."""
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if abs(num_bytes) >= unit:
            return f"{num_bytes / unit:.2f} {name}"
    return f"{num_bytes} B"


def format_gib(num_bytes: int) -> str:
    """`num_bytes` in GiB, so that sums can be followed; what would be none of them in the largest unit below it."""
    return format_bytes(num_bytes) if abs(num_bytes) < GiB / 10 else f"{num_bytes / GiB:.2f} GiB"


def format_seconds(seconds: float) -> str:
    """A duration for people: 0.0042 → "4.2 ms", 12.3 → "12.3 s", 125 → "2 min 5 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
