"""How a dimension is cut into tiles: Triton's tiles are powers of two, and a tile that divides needs no mask."""

from __future__ import annotations


def tile(size: int, at_most: int) -> int:
    """The largest power of two that divides `size` and is not above `at_most` (a power of two)."""
    return min(size & -size, at_most)
