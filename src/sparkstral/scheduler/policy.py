"""Who is admitted, who waits, who gives way.

Owns the order of service; must not know tokens or blocks beyond counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkstral.scheduler.request import Request

MAX_TIMES_OVERTAKEN = 16
"""A request that waits for memory lets this many later ones that fit pass before it; then all wait for it.
Short requests so seldom wait behind a large one, and a large one never waits for ever."""

PLACES_OF_PRIORITY = 16
"""A request of priority p is served as if it had come 16 p requests later (earlier if p is negative). So urgent ones
pass those that wait, and nobody waits for ever: sooner or later all that comes has a later place."""

MAX_EXAMINED = 8
"""Waiting requests that one step looks at: each look reads the prefix index, and a step must stay short."""


def place(num_arrivals: int, priority: int) -> int:
    """Where a request stands in the order of service, and in reverse in that of preemption; lower is earlier."""
    return num_arrivals + PLACES_OF_PRIORITY * priority


def num_reserved_blocks(running: Sequence[Request]) -> int:
    """Blocks that an admission leaves free: one for each running request, so that it does not at once have to
    give way to their next block."""
    return len(running)


def victim(running: Sequence[Request]) -> Request:
    """Who gives way when a running request needs a block and none is free: the last in the order. The first
    always keeps its blocks and fits alone, so there is always progress."""
    return running[-1]


def may_be_overtaken(request: Request) -> bool:
    """Whether later requests may be admitted before this one, which the memory does not hold yet."""
    return request.num_times_overtaken < MAX_TIMES_OVERTAKEN
