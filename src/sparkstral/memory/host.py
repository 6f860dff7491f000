"""What a Spark's memory holds beside the engine's own bytes: the system, our processes, the driver's context.

Owns these allowances and where each is from; must not know the model. They count where a whole machine is planned. What
`--live` or the engine itself finds available has them taken off already, as far as they are there.
"""

from __future__ import annotations

from sparkstral.memory.lines import PlanLine
from sparkstral.units import GiB, MiB

DEFAULT_TOTAL_BYTES = 119 * GiB
"""What a Spark shows of its 128 GB at least (119 to 122 GiB were reported)."""

_SYSTEM = PlanLine("system", 4 * GiB, "allowance for Ubuntu with its desktop and services; --live measures instead")
_PROCESSES = PlanLine(
    "host processes", 2 * GiB, "allowance for server and engine, libraries, pinned buffers and grammars included"
)
_CONTEXT = PlanLine("CUDA context", 512 * MiB, "allowance; not measured on a GB10 yet")
_PAGE_CACHE = PlanLine(
    "page cache", 256 * MiB, "loading passes it by: it grew by so much on an H200, 2026-12-02; the kernel may drop it"
)

GROWTH = PlanLine("host processes", 1 * GiB, "allowance for what server and engine still take of the shared memory")
"""For an engine that plans at its start: its context, its libraries and the system are taken off already."""


def host_lines(*, is_live: bool) -> tuple[PlanLine, ...]:
    """With `is_live`, the system's own share is not in what is available, nor is droppable page cache."""
    ours = (_CONTEXT, _PROCESSES)
    return ours if is_live else (*ours, _SYSTEM, _PAGE_CACHE)
