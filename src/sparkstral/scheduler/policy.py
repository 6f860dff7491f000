"""Who is admitted, who waits, who gives way.

Owns the order of service; must not know tokens or blocks beyond counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkstral.scheduler.request import Request

MAX_TIMES_OVERTAKEN = 16
"""A request that waits for memory lets this many later ones that fit pass before it; then all wait for it.
Short requests so seldom wait behind a large one, and a large one never waits for ever."""

MAX_EXAMINED = 8
"""Waiting requests that one step looks at: each look reads the prefix index, and a step must stay short."""


def num_reserved_blocks(running: Sequence[Request]) -> int:
    """Blocks that an admission leaves free: one for each running request, so that it does not at once have to
    give way to their next block."""
    return len(running)


def victim(running: Sequence[Request]) -> Request:
    """Who gives way when a running request needs a block and none is free: the last that came. The oldest
    always keeps its blocks and fits alone, so there is always progress."""
    return running[-1]


def may_be_overtaken(request: Request) -> bool:
    """Whether later requests may be admitted before this one, which the memory does not hold yet."""
    return request.num_times_overtaken < MAX_TIMES_OVERTAKEN
