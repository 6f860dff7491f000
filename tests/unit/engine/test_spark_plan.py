"""The plan of one Spark: the numbers of the public recipe that this project starts from, and what flags change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkstral.checkpoint.facts import released_model
from sparkstral.cli.plan import MAX_CONCURRENCY
from sparkstral.engine.spark_plan import SparkPlan, Target, plan_spark
from sparkstral.errors import ConfigError
from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.mla_decode.triton_kernel import MAX_REQUESTS
from sparkstral.memory.fast_workspace import GB10_KERNELS, KernelSizes
from sparkstral.memory.holding import DraftHead, Holding
from sparkstral.memory.host import DEFAULT_TOTAL_BYTES
from sparkstral.memory.probe import AvailableMemory
from sparkstral.units import GiB

FACTS = released_model()
SPARK = Target(AvailableMemory(DEFAULT_TOTAL_BYTES, "test"))
FALLBACK = replace(SPARK, mla=False)


def pool_gib(found: SparkPlan) -> str:
    return f"{next(line.num_bytes for line in found.memory.lines if line.name == 'KV pool') / GiB:.2f}"


def size(found: SparkPlan, name: str) -> int:
    return next(line.num_bytes for line in found.memory.lines if line.name == name)


@pytest.mark.parametrize(
    ("max_model_len", "pool", "fits"),
    [(65_536, "36.00", False), (42_000, "23.07", False), (40_000, "21.97", True)],
)
def test_with_mla_off_lengths_fit_or_not_as_the_recipe_found_by_crashing(
    max_model_len: int, pool: str, fits: bool
) -> None:
    found = plan_spark(FACTS, replace(FALLBACK, max_model_len=max_model_len))
    assert found.kv_bytes_per_token == 589_824
    assert pool_gib(found) == pool
    assert found.memory.fits is fits


def test_with_mla_off_42000_tokens_are_short_by_0_11_gib_and_the_largest_length_is_told() -> None:
    verdict = plan_spark(FACTS, replace(FALLBACK, max_model_len=42_000)).memory.verdict
    assert "42,000 tokens needs 23.07 GiB of KV cache against 22.96 GiB available: short by 0.11 GiB" in verdict
    assert "The largest length that fits is 41,792" in verdict
    assert plan_spark(FACTS, replace(FALLBACK, max_model_len=41_792)).memory.fits
    assert not plan_spark(FACTS, replace(FALLBACK, max_model_len=41_793)).memory.fits
    assert plan_spark(FACTS, FALLBACK).memory.max_model_len == 41_792


def test_native_mla_needs_5_63_gib_for_262144_tokens() -> None:
    found = plan_spark(FACTS, replace(SPARK, max_model_len=262_144, concurrency=1))
    assert found.kv_bytes_per_token == 23_040
    assert pool_gib(found) == "5.63"
    assert found.memory.fits


def test_by_default_the_published_length_fits_and_the_floor_stays() -> None:
    plan = plan_spark(FACTS, SPARK).memory
    assert (plan.max_model_len, plan.floor_bytes) == (262_144, 8 * GiB)
    assert plan.concurrency >= 1
    assert plan.spare_bytes > 0
    names = {line.name for line in plan.lines}
    assert names >= {"CUDA context", "host processes", "system", "page cache", "graphs", "workspaces", "KV pool"}
    assert all(line.how_known for line in plan.lines)


def test_as_many_as_are_said_to_fit_at_once_do_and_no_more() -> None:
    most = plan_spark(FACTS, replace(SPARK, max_model_len=262_144)).memory.max_concurrency
    assert plan_spark(FACTS, replace(SPARK, max_model_len=262_144, concurrency=most)).memory.fits
    refused = plan_spark(FACTS, replace(SPARK, max_model_len=262_144, concurrency=most + 1)).memory
    assert not refused.fits
    assert f"{most + 1} requests of 262,144 tokens need" in refused.verdict
    assert "ask for fewer at once" in refused.verdict


def test_without_a_length_it_is_the_longest_that_so_many_requests_can_have() -> None:
    plan = plan_spark(FACTS, replace(SPARK, concurrency=100)).memory
    assert plan.fits
    assert plan.concurrency == 100
    assert not plan_spark(FACTS, replace(SPARK, max_model_len=plan.max_model_len + 64, concurrency=100)).memory.fits


def test_flags_change_their_lines_alone() -> None:
    plain = plan_spark(FACTS, replace(SPARK, max_model_len=8192, concurrency=1))
    small = plan_spark(
        FACTS,
        replace(SPARK, max_model_len=8192, concurrency=1, holding=Holding(dense="fp8", kv="fp8"), with_vision=False),
    )
    assert size(small, "KV pool") * 640 == size(plain, "KV pool") * 386
    assert size(small, "attention") < 0.53 * size(plain, "attention")  # kv_b_proj stays, a twentieth
    assert "vision and projector" not in {line.name for line in small.memory.lines}
    assert size(plain, "vision and projector") == 856_944_640
    drafting = plan_spark(FACTS, replace(SPARK, holding=Holding(draft=DraftHead.published(FACTS.config))))
    assert drafting.kv_bytes_per_token == 23_040 + 1_280
    assert size(drafting, "draft head") > 390e6


def test_live_leaves_out_what_is_taken_already() -> None:
    names = {line.name for line in plan_spark(FACTS, replace(SPARK, is_live=True)).memory.lines}
    assert "system" not in names
    assert "CUDA context" in names


def test_the_fallback_loads_files_as_they_are() -> None:
    for settings in ({"holding": Holding(dense="fp8")}, {"with_vision": False}):
        with pytest.raises(ConfigError, match="--no-mla plans the fallback on vLLM"):
            plan_spark(FACTS, replace(FALLBACK, **settings))  # type: ignore[arg-type]


def test_what_is_expected_is_the_bytes_at_240_gb_per_s() -> None:
    projection = plan_spark(FACTS, replace(SPARK, max_model_len=30_000, concurrency=8)).projection
    assert projection.label == "projected, not measured"
    alone, long, many = projection.decode
    assert (alone.num_requests, alone.context_tokens) == (1, 1024)
    assert alone.tokens_per_s == pytest.approx(40.6, abs=0.1)  # docs/model.md: 42.3 at no context, without launches
    assert long.step_bytes - alone.step_bytes == (30_000 - 1024) * 23_040
    assert many.tokens_per_s == pytest.approx(8 * many.tokens_per_s_each)
    fast = plan_spark(FACTS, replace(SPARK, holding=Holding(dense="fp8"))).projection.decode[0]
    assert fast.tokens_per_s == pytest.approx(55.0, abs=0.1)


def test_the_kernels_of_a_gb10_are_those_that_are_planned() -> None:
    shipped = KernelConfigs.shipped((12, 1))
    sizes = KernelSizes(
        shipped.decode.max_splits, shipped.moe.max_few, shipped.sampling.stretch, shipped.token_logprobs.stretch
    )
    assert sizes == GB10_KERNELS
    assert MAX_CONCURRENCY == MAX_REQUESTS
