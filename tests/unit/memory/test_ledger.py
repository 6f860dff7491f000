from __future__ import annotations

import pytest

from sparkstral.memory.ledger import draw_ledger, group_ledger, show_ledger
from sparkstral.memory.lines import PlanLine
from sparkstral.units import GiB, MiB


def plan(**sizes: int) -> list[PlanLine]:
    return [PlanLine(name.replace("_", " "), num_bytes, "test") for name, num_bytes in sizes.items()]


PLANNED = plan(attention=2 * GiB, routed_experts=60 * GiB, KV_pool=6 * GiB, workspaces=GiB, activations=GiB, graphs=GiB)


def test_each_line_stands_beside_its_plan_and_what_has_no_name_is_told() -> None:
    ledger = draw_ledger(PLANNED, {"attention": 2 * GiB, "KV pool": 5 * GiB, "other": MiB}, 8 * GiB)
    found = {line.name: (line.planned_bytes, line.actual_bytes) for line in ledger.lines}
    assert found["attention"] == (2 * GiB, 2 * GiB)
    assert found["graphs"] == (GiB, None)
    assert found["other"] == (0, MiB)
    assert ledger.planned_bytes == 71 * GiB
    assert ledger.residual_bytes == 8 * GiB - 7 * GiB - MiB
    text = show_ledger(ledger)
    assert "KV pool 6.00 GiB 5.00 GiB" in " ".join(text.split())
    assert text.splitlines()[-1].startswith("without a name")


def test_the_groups_are_the_figures_to_compare() -> None:
    measured = {
        "attention": 2 * GiB, "routed experts": 61 * GiB, "KV pool": 6 * GiB, "workspaces": GiB, "activations": 2 * GiB,
        "step buffers": GiB,
    }  # fmt: skip
    rows = {row["name"]: row for row in group_ledger(draw_ledger(PLANNED, measured, 80 * GiB))}
    assert rows["weights"]["difference"] == pytest.approx(1 / 62)
    assert rows["KV"]["difference"] == 0
    assert rows["workspace"]["actual_bytes"] == 4 * GiB
    assert rows["workspace"]["difference"] == pytest.approx(1.0)
    assert (rows["graphs"]["planned_bytes"], rows["graphs"]["difference"]) == (GiB, None)
