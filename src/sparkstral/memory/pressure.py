"""When the host runs short of memory: what is to be done about it, in stages, before the kernel kills or it hangs.

Owns the thresholds and their hysteresis. Must not know who acts: whoever holds the guard calls `tick` now and then and
does what the stage says. The reader is given, so that tests say what the host has left.

The measure is the kernel's MemAvailable. On a machine whose GPU shares the host's memory it is what GPU programs take
from, and no other figure is (control groups do not see them, the driver's own says [N/A]). Hosts of 121.6 GiB were
reported frozen from 113.9 GiB in use on; the plan keeps 8 GiB free, so that the stages lie below what a planned server
reaches by itself: somebody else is taking memory then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from sparkstral.memory.plan import floor_bytes
from sparkstral.memory.probe import AvailableMemory, HostMemory, read_host
from sparkstral.types import MemoryPressure
from sparkstral.units import format_gib


class Stage(IntEnum):
    CALM = 0
    SHRINK = 1  # give back what can be computed again
    REFUSE = 2  # and take no new request
    END = 3  # and end the engine, in good order, while there is still time


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Bytes available below which a stage begins; it ends `margin_bytes` above that."""

    shrink_bytes: int
    refuse_bytes: int
    end_bytes: int
    margin_bytes: int

    @classmethod
    def of(cls, total_bytes: int) -> Thresholds:
        """Three, two and one quarter of the floor that the plan keeps free, with an eighth between begin and end."""
        floor = floor_bytes(AvailableMemory(total_bytes, "MemTotal"))
        return cls(floor * 3 // 4, floor // 2, floor // 4, floor // 8)

    def begins_at(self, stage: Stage) -> int:
        return (0, self.shrink_bytes, self.refuse_bytes, self.end_bytes)[stage]


class PressureGuard:
    """One host's. `read` gives what is available, or None where that cannot be read: then nothing changes."""

    def __init__(self, read: Callable[[], HostMemory | None], thresholds: Thresholds) -> None:
        self._read = read
        self._thresholds = thresholds
        self._was_near_end = False
        self.stage = Stage.CALM
        self.available_bytes: int | None = None

    def tick(self) -> Stage:
        """Look, and say what stage it is now. The end takes two looks in a row: nothing else cannot be taken back."""
        found = self._read()
        if found is None:
            return self.stage
        available = self.available_bytes = found.available_bytes
        begun = max(stage for stage in Stage if stage is Stage.CALM or available < self._thresholds.begins_at(stage))
        is_near_end = begun is Stage.END
        if is_near_end and not self._was_near_end:
            begun = Stage.REFUSE
        self._was_near_end = is_near_end
        self.stage = max(begun, self._kept(available))
        return self.stage

    def _kept(self, available: int) -> Stage:
        """The stage that has begun before and not ended yet."""
        stage, limits = self.stage, self._thresholds
        while stage is not Stage.CALM and available >= limits.begins_at(stage) + limits.margin_bytes:
            stage = Stage(stage - 1)
        return stage

    def sentence(self) -> str:
        """Why requests are refused, or the engine is ended, with the numbers."""
        has = format_gib(self.available_bytes or 0)
        limits = self._thresholds
        if self.stage is Stage.END:
            return (
                f"The host had {has} of memory available, and below {format_gib(limits.end_bytes)} the engine is ended "
                "before the host hangs. Stop other programs that hold memory (`sparkstral plan --live` names them), or "
                "restart with a smaller --max-model-len or --kv-memory."
            )
        return (
            f"{has} of memory are available on this host and new requests need {format_gib(limits.refuse_bytes)}; they "
            f"are taken again from {format_gib(limits.refuse_bytes + limits.margin_bytes)} on"
        )

    def report(self) -> MemoryPressure | None:
        """What it saw last, for those who watch; None before the first look."""
        if self.available_bytes is None:
            return None
        return MemoryPressure(self.stage.name.lower(), int(self.stage), self.available_bytes)


def host_guard() -> PressureGuard | None:
    """This host's; None where the kernel does not tell (no /proc)."""
    found = read_host()
    return None if found is None else PressureGuard(read_host, Thresholds.of(found.total_bytes))
