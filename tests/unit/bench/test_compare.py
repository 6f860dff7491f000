"""What two runs' own spread explains is noise; the rest is faster or slower, whichever way the unit counts."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstral.bench.compare import compare, document
from sparkstral.errors import ConfigError


def kernels(us: float, spread: float, **more: Any) -> dict[str, Any]:
    row = {
        "operation": "mla_decode", "name": "attend", "variant": "shipped", "us": us, "us_low": us - spread,
        "us_high": us + spread, "verdict": "ok", **more,
    }  # fmt: skip
    return {"kind": "bench kernels", "rows": [row]}


def engine(value: float, spread: float, unit: str) -> dict[str, Any]:
    row = {"name": "x", "value": value, "unit": unit, "low": value - spread, "high": value + spread, "verdict": "ok"}
    return {"kind": "bench engine", "rows": [row]}


@pytest.mark.parametrize(
    ("before", "after", "spread", "verdict"),
    [
        (10.0, 10.9, 0.5, "within noise"),
        (10.0, 11.1, 0.5, "slower"),
        (10.0, 8.9, 0.5, "faster"),
        (10.0, 10.05, 0.001, "within noise"),  # half a percent is nothing, however steady
        (10.0, 10.2, 0.001, "slower"),
        (10.0, 20.0, 0.0, "measured once"),
    ],
)
def test_times(before: float, after: float, spread: float, verdict: str) -> None:
    (found,) = compare(kernels(before, spread), kernels(after, spread))
    assert found.verdict == verdict
    assert found.change == pytest.approx(after / before - 1)


def test_more_tokens_a_second_are_faster() -> None:
    (found,) = compare(engine(1000, 10, "tok/s"), engine(1100, 10, "tok/s"))
    assert found.verdict == "faster"
    (found,) = compare(engine(5, 0.01, "ms"), engine(5.5, 0.01, "ms"))
    assert found.verdict == "slower"


def test_rows_of_one_run_alone_are_named() -> None:
    other = kernels(10, 0.1)
    other["rows"][0]["name"] = "absorb"
    assert [row.verdict for row in compare(kernels(10, 0.1), other)] == ["only in A", "only in B"]


def test_what_failed_before_is_not_newly_failed() -> None:
    good, bad = kernels(10, 0.1), kernels(10, 0.1, verdict="failed", faults=["not finite"])
    assert document(good, bad)["newly_failed"] == ["mla_decode: attend: not finite"]
    assert document(bad, bad)["newly_failed"] == []


def test_runs_of_different_commands_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bench kernels and bench engine"):
        compare(kernels(1, 0), engine(1, 0, "ms"))
