from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sparkstral.memory.pressure import PressureGuard, Stage, Thresholds
from sparkstral.memory.probe import HostMemory, read_host
from sparkstral.units import GiB

LIMITS = Thresholds.of(100 * GiB)


class Host:
    """A reader whose answers the test gives."""

    def __init__(self) -> None:
        self.available: float | None = 50

    def read(self) -> HostMemory | None:
        return None if self.available is None else HostMemory(100 * GiB, int(self.available * GiB))


def stages(*available: float | None) -> list[Stage]:
    host = Host()
    guard = PressureGuard(host.read, LIMITS)
    found = []
    for host.available in available:
        found.append(guard.tick())
    return found


def test_the_thresholds_are_parts_of_the_floor_that_the_plan_keeps() -> None:
    assert Thresholds(6 * GiB, 4 * GiB, 2 * GiB, GiB) == LIMITS
    assert Thresholds.of(8 * GiB).refuse_bytes == int(0.4 * GiB)


def test_stages_begin_at_once_and_end_above_their_margin() -> None:
    assert stages(50, 5.9, 6.5, 7.0) == [Stage.CALM, Stage.SHRINK, Stage.SHRINK, Stage.CALM]
    assert stages(3.9, 4.9, 5.0, 50) == [Stage.REFUSE, Stage.REFUSE, Stage.SHRINK, Stage.CALM]


def test_the_end_takes_two_looks_in_a_row() -> None:
    assert stages(1.9, 1.9) == [Stage.REFUSE, Stage.END]
    assert stages(1.9, 2.1, 1.9, 2.1) == [Stage.REFUSE] * 4
    assert stages(1, 1, 50) == [Stage.REFUSE, Stage.END, Stage.CALM]


def test_what_cannot_be_read_changes_nothing() -> None:
    assert stages(None) == [Stage.CALM]
    assert stages(3, None, None) == [Stage.REFUSE] * 3


def test_the_reasons_have_the_numbers() -> None:
    host = Host()
    guard = PressureGuard(host.read, LIMITS)
    assert guard.report() is None
    host.available = 3
    guard.tick()
    assert "3.00 GiB of memory are available" in guard.sentence()
    assert "from 5.00 GiB on" in guard.sentence()
    host.available = 1.5
    guard.tick()
    guard.tick()
    assert "had 1.50 GiB of memory available, and below 2.00 GiB the engine is ended" in guard.sentence()
    report = guard.report()
    assert report is not None
    assert (report.stage, report.level) == ("end", 3)


@given(st.lists(st.floats(0, 20), max_size=30))
def test_a_stage_is_never_below_its_threshold_nor_kept_above_its_margin(available: list[float]) -> None:
    for now, stage in zip(available, stages(*available), strict=True):
        num_bytes = int(now * GiB)
        if num_bytes < LIMITS.refuse_bytes:
            assert stage >= Stage.REFUSE
        elif num_bytes < LIMITS.shrink_bytes:
            assert stage >= Stage.SHRINK
        if stage is not Stage.CALM:
            assert num_bytes < LIMITS.begins_at(stage) + LIMITS.margin_bytes


def test_the_kernel_is_read_as_it_writes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  300 kB\n")
    assert read_host(tmp_path) == HostMemory(1000 << 10, 300 << 10)
    assert read_host(tmp_path / "absent") is None
