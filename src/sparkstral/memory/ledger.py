"""What was really taken, by name, against the plan.

Owns the comparison; must not know how anything is measured (runner/held). What is taken and has no name is the
residual: a leak in the plan would show there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkstral.memory.lines import PlanLine
from sparkstral.types import MemoryLedger, MemoryLine
from sparkstral.units import format_bytes

# The lines of a plan that are put together where a few figures are to be compared; what is not here is weights.
_GROUPS = {
    "KV pool": "KV", "workspaces": "workspace", "activations": "workspace", "logits": "workspace", "graphs": "graphs",
    "image embeddings": "workspace", "step buffers": "workspace", "host processes": "host",
    "weights as stored": "loading", "other": "other",
}  # fmt: skip
GROUPS = ("weights", "KV", "workspace", "graphs")


def draw_ledger(planned: Sequence[PlanLine], measured: Mapping[str, int], taken_bytes: int) -> MemoryLedger:
    """Each planned line beside what was `measured` under its name (None: nothing can be said), then what was measured
    and not planned. `taken_bytes` is what the system says that all of it took."""
    names = [line.name for line in planned]
    lines = [MemoryLine(line.name, line.num_bytes, measured.get(line.name)) for line in planned]
    lines += [MemoryLine(name, 0, num_bytes) for name, num_bytes in measured.items() if name not in names]
    return MemoryLedger(
        lines=tuple(lines),
        planned_bytes=sum(line.planned_bytes for line in lines),
        taken_bytes=taken_bytes,
        residual_bytes=taken_bytes - sum(measured.values()),
    )


def group_ledger(ledger: MemoryLedger) -> list[dict[str, Any]]:
    """Weights, KV, workspace and graphs: planned, actual and their difference as a share of the plan; None where
    nothing of it was measured."""
    rows = []
    for group in GROUPS:
        lines = [line for line in ledger.lines if _GROUPS.get(line.name, "weights") == group]
        planned = sum(line.planned_bytes for line in lines)
        actual = [line.actual_bytes for line in lines if line.actual_bytes is not None]
        row: dict[str, Any] = {"name": group, "planned_bytes": planned, "actual_bytes": None, "difference": None}
        if actual:
            row["actual_bytes"] = sum(actual)
            row["difference"] = sum(actual) / planned - 1 if planned else None
        rows.append(row)
    return rows


def show_ledger(ledger: MemoryLedger) -> str:
    """For the log: one line for each part, then what was taken and what of it has no name."""
    rows = [("", "planned", "actual")]
    for line in ledger.lines:
        actual = "" if line.actual_bytes is None else format_bytes(line.actual_bytes)
        rows.append((line.name, format_bytes(line.planned_bytes), actual))
    rows.append(("all", format_bytes(ledger.planned_bytes), format_bytes(ledger.taken_bytes)))
    rows.append(("without a name", "", format_bytes(ledger.residual_bytes)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {planned:>{widths[1]}}  {actual:>{widths[2]}}".rstrip() for name, planned, actual in rows
    )
