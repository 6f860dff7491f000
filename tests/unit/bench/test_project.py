"""The formula of a projection, and what a run with gaps becomes."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstral.bench.project import decode_recipe, prefill_recipe, project, project_row

H200_BYTES_PER_S = 4.48e12


def row(us: float, num_bytes: float, launches: int = 1, **more: Any) -> dict[str, Any]:
    share = num_bytes / us * 1e6 / H200_BYTES_PER_S
    return {
        "operation": "rms_norm", "name": "x", "variant": "shipped", "us": us, "bytes": num_bytes, "launches": launches,
        "bandwidth_share": share, "verdict": "ok", **more,
    }  # fmt: skip


def test_what_memory_bounds_takes_its_bytes_at_240_gb_per_s_and_2_us_a_launch() -> None:
    projection = project_row(row(us=100, num_bytes=0.9 * 100e-6 * H200_BYTES_PER_S, launches=2))
    assert projection.bound == "memory"
    assert projection.projected_us == pytest.approx(0.9 * 100 * 4480 / 240 + 4)
    assert projection.projected_bound == "memory"


def test_what_arithmetic_bounds_takes_2_18_times_as_long() -> None:
    projection = project_row(row(us=100, num_bytes=1e6))
    assert projection.bound == "arithmetic"
    assert projection.projected_us == pytest.approx(218 + 2)
    assert projection.projected_bound == "arithmetic"


def test_half_the_bandwidth_on_an_h200_is_far_above_the_bus_of_a_gb10() -> None:
    projection = project_row(row(us=100, num_bytes=0.4 * 100e-6 * H200_BYTES_PER_S))
    assert projection.bound == "arithmetic"
    assert projection.projected_us == pytest.approx(0.4 * 100 * 4480 / 240 + 2)
    assert projection.projected_bound == "memory"


def test_matrix_products_are_not_faster_than_the_tensor_cores_of_a_gb10() -> None:
    flops = 100e-6 * 600e12  # 600 TFLOP/s on the H200
    projection = project_row(row(us=100, num_bytes=1e6, tensor_flops=flops))
    assert projection.projected_us == pytest.approx(flops / 61e12 * 1e6 + 2)
    assert projection.projected_bound == "tensor cores"


def test_a_launch_of_a_few_microseconds_is_no_arithmetic() -> None:
    projection = project_row(row(us=3, num_bytes=1e4))
    assert projection.bound == "launch"
    assert projection.projected_us == pytest.approx(1e4 / 240e9 * 1e6 + 2)


def test_a_step_is_the_sum_of_its_kernels_and_says_which_are_missing() -> None:
    kernels = {(operation, name) for operation, name, _ in decode_recipe(1, 300)}
    rows = [row(10, 1e6) | {"operation": operation, "name": name} for operation, name in sorted(kernels)]
    steps = {step["name"]: step for step in project({"rows": rows})["steps"]}
    decode = steps["decode, batch 1, 300 tokens of context"]
    num_kernels = 36 * 9 + 4
    assert decode["measured_ms"] == pytest.approx(num_kernels * 10 / 1e3)
    assert decode["projected_ms"] == pytest.approx(num_kernels * (21.8 + 2) / 1e3)
    assert decode["projected_tok_s"] == pytest.approx(1e3 / decode["projected_ms"])
    assert steps["prefill of 8192 tokens"]["projected_ms"] is None
    assert len(steps["prefill of 8192 tokens"]["missing"]) > 5


def test_everything_projected_is_called_so() -> None:
    document = project({"rows": [row(10, 1e6)]})
    assert document["label"] == "projected, not measured"
    gb10 = [name for name in document["rows"][0] if name.startswith("projected")]
    assert gb10 == ["projected_us", "projected_bound"]


def test_recipes_have_every_layer() -> None:
    assert sum(count for *_, count in decode_recipe(8, 300)) == 36 * 9 + 4
    assert sum(count for *_, count in prefill_recipe(1024)) == 36 * 9 + 2
