"""Two runs of one command: what got faster, what slower, and what differs by no more than the runs' own spread.

Owns what "within noise" means: the medians differ by less than the two rows' spreads (median to the farther of
fastest and slowest) together, or by less than MIN_CHANGE. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparkstral.errors import ConfigError

MIN_CHANGE = 0.01


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run, with the range of its repeats."""

    value: float
    low: float
    high: float
    unit: str
    higher_is_better: bool

    @property
    def spread(self) -> float:
        return max(self.high - self.value, self.value - self.low)


@dataclass(frozen=True, slots=True)
class Comparison:
    name: str
    unit: str
    a: float | None
    b: float | None
    change: float | None  # of B against A: 0.1 is a tenth more
    noise: float | None  # the change that the spreads would explain
    verdict: str  # faster, slower, within noise, measured once, only in A, only in B


def figures(run: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    for row in run.get("rows", []):
        name = ": ".join(str(row[key]) for key in ("operation", "name") if key in row)
        if row.get("variant", "shipped") != "shipped":
            name += f" ({row['variant']})"
        if "us" in row:
            yield name, Figure(row["us"], row.get("us_low", row["us"]), row.get("us_high", row["us"]), "us", False)
        elif row.get("value") is not None:
            value = row["value"]
            yield (
                name,
                Figure(value, row.get("low", value), row.get("high", value), row["unit"], row["unit"].endswith("/s")),
            )


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Comparison]:
    """Rows of A in their order, then those of B alone. Raises ConfigError for runs of different commands."""
    if a.get("kind") != b.get("kind"):
        raise ConfigError(f"These are runs of different commands: {a.get('kind')} and {b.get('kind')}.")
    of_a, of_b = dict(figures(a)), dict(figures(b))
    found = [_judge(name, figure, of_b.get(name)) for name, figure in of_a.items()]
    found += [
        Comparison(name, figure.unit, None, figure.value, None, None, "only in B")
        for name, figure in of_b.items()
        if name not in of_a
    ]
    return found


def _judge(name: str, a: Figure, b: Figure | None) -> Comparison:
    if b is None:
        return Comparison(name, a.unit, a.value, None, None, None, "only in A")
    change, noise = b.value / a.value - 1, (a.spread + b.spread) / a.value
    if a.low == a.high and b.low == b.high:
        verdict = "measured once"  # nothing is known of its noise
    elif abs(change) <= max(noise, MIN_CHANGE):
        verdict = "within noise"
    else:
        verdict = "faster" if (change > 0) == a.higher_is_better else "slower"
    return Comparison(name, a.unit, a.value, b.value, change, noise, verdict)


def newly_failed(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Rows that failed in B and not in A."""

    def failed(run: Mapping[str, Any]) -> dict[str, str]:
        return {
            f"{row.get('operation', '')}: {row['name']}".removeprefix(": "): "; ".join(row.get("faults", []))
            for row in run.get("rows", [])
            if row.get("verdict") == "failed"
        }

    before = failed(a)
    return [f"{name}: {why}" for name, why in failed(b).items() if name not in before]


def document(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of `bench compare`."""
    rows = compare(a, b)
    heads = [{name: run.get(name) for name in ("device", "commit", "time", "versions")} for run in (a, b)]
    return {
        "schema_version": 1,
        "kind": "bench compare",
        "of": a.get("kind"),
        "a": heads[0],
        "b": heads[1],
        "same_device": a.get("device") == b.get("device"),
        "newly_failed": newly_failed(a, b),
        "rows": [asdict(row) for row in rows],
    }
