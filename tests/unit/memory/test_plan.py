from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstral.errors import ConfigError, MemoryPlanError
from sparkstral.kv_cache.layout import KvLayout, capacity_tokens
from sparkstral.memory.lines import PlanLine
from sparkstral.memory.plan import MIN_MODEL_LEN, MemoryPlan, PlanRequest, draw_plan, floor_bytes
from sparkstral.memory.probe import AvailableMemory
from sparkstral.memory.workspace import Workspace
from sparkstral.model.config import LATENT_WIDTH, ModelConfig
from sparkstral.units import GiB, MiB

REAL = ModelConfig(
    hidden_size=4096,
    num_hidden_layers=36,
    vocab_size=131_072,
    num_attention_heads=32,
    q_lora_rank=1024,
    n_routed_experts=128,
    moe_intermediate_size=2048,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    rope_factor=128.0,
    rope_beta_fast=32.0,
    rope_beta_slow=1.0,
    original_max_position_embeddings=8192,
    llama_4_scaling_beta=0.1,
    llama_4_original_max_position_embeddings=8192,
    max_position_embeddings=1_048_576,
)
WEIGHTS_BYTES = 69_944_959_408
SPARK = AvailableMemory(119 * GiB, "cudaMemGetInfo")


def request(
    max_model_len: int | None = None,
    kv_memory_bytes: int | None = None,
    weights_bytes: int = WEIGHTS_BYTES,
    max_num_seqs: int = 32,
    block_size_tokens: int = 64,
) -> PlanRequest:
    return PlanRequest(
        fixed=(PlanLine("weights", weights_bytes, "file headers"),),
        workspace=Workspace(REAL, dtype_bytes=2, max_num_batched_tokens=2048, max_num_seqs=max_num_seqs),
        layout=KvLayout(REAL.num_hidden_layers, LATENT_WIDTH, 2, block_size_tokens),
        max_model_len=max_model_len,
        kv_memory_bytes=kv_memory_bytes,
    )


def kv_tokens(plan: MemoryPlan, block_size_tokens: int = 64) -> int:
    """Tokens of all requests together that the pool holds."""
    return capacity_tokens(plan.num_blocks, block_size_tokens)


def left_bytes(plan: MemoryPlan) -> int:
    """What the lines other than the pool leave above the floor."""
    others = sum(line.num_bytes for line in plan.lines if line.name != "KV pool")
    return plan.available.num_bytes - plan.floor_bytes - others


def with_room_for(plan_request: PlanRequest, max_model_len: int, pool_bytes: int) -> AvailableMemory:
    """Available bytes that leave exactly `pool_bytes` for the pool at this length, above the floor."""
    lines = (*plan_request.fixed, *plan_request.workspace.lines(max_model_len))
    wanted_bytes = sum(line.num_bytes for line in lines) + pool_bytes
    available = AvailableMemory(min(wanted_bytes * 10 // 9, wanted_bytes + 8 * GiB), "test")
    while available.num_bytes - floor_bytes(available) < wanted_bytes:
        available = AvailableMemory(available.num_bytes + 1, "test")
    return available


def test_a_spark_has_the_published_length_by_default() -> None:
    plan = draw_plan(request(), SPARK).require()
    assert plan.max_model_len == 262_144
    assert kv_tokens(plan) >= 262_144
    assert plan.spare_bytes > 0
    assert plan.total_bytes + plan.spare_bytes + plan.floor_bytes == SPARK.num_bytes


def test_262144_tokens_need_5_63_gib_of_latents() -> None:
    plan = draw_plan(request(max_model_len=262_144, max_num_seqs=1), SPARK).require()
    pool = plan.lines[-1]
    assert pool.num_bytes == (4096 + 1) * 64 * 23_040
    assert f"{pool.num_bytes / GiB:.2f}" == "5.63"


def test_each_sequence_gets_its_default_length_and_the_pool_at_most_half_of_what_is_left() -> None:
    roomy = draw_plan(request(max_model_len=16_384), AvailableMemory(500 * GiB, "test")).require()
    assert kv_tokens(roomy) == 32 * 8192
    tight = draw_plan(request(max_model_len=16_384), AvailableMemory(84 * GiB, "test")).require()
    assert 16_384 <= kv_tokens(tight) < 32 * 8192
    assert tight.lines[-1].num_bytes <= left_bytes(tight) / 2


def test_a_length_that_the_user_fixed_may_take_more_than_the_default_share() -> None:
    plan_request = request(max_model_len=65_536)
    needed = (1024 + 1) * 64 * 23_040
    plan = draw_plan(plan_request, with_room_for(plan_request, 65_536, needed)).require()
    assert plan.max_model_len == 65_536
    assert plan.spare_bytes == 0


def test_one_byte_too_few_is_refused_with_the_sum_what_fits_and_the_flag() -> None:
    plan_request = request(max_model_len=65_536)
    available = with_room_for(plan_request, 65_536, (1024 + 1) * 64 * 23_040 - 1)
    plan = draw_plan(plan_request, available)
    assert not plan.fits
    assert plan.spare_bytes == -1
    with pytest.raises(MemoryPlanError) as refusal:
        plan.require()
    message = str(refusal.value)
    for words in (
        "65.14 GiB",
        "a request of 65,536 tokens needs 1.41 GiB",
        "short by 1 B",
        "--max-model-len to 65472",
    ):
        assert words in message
    assert draw_plan(request(max_model_len=65_472), available).fits, "what it says fits does fit"


def test_a_length_that_nobody_fixed_shrinks_and_the_plan_says_so() -> None:
    plan = draw_plan(request(), AvailableMemory(78 * GiB, "test")).require()
    assert 64 < plan.max_model_len < 262_144
    assert plan.max_model_len % 64 == 0
    assert "262,144 tokens need 5.63 GiB of KV cache" in plan.verdict
    assert kv_tokens(plan) >= plan.max_model_len


def test_where_only_the_share_is_too_small_the_plan_names_the_flag_that_takes_it_all() -> None:
    plan_request = request()
    available = with_room_for(plan_request, 262_144, 8 * GiB)
    plan = draw_plan(plan_request, available).require()
    assert plan.max_model_len < 262_144
    assert "--max-model-len 262144 takes it all the same" in plan.verdict
    assert draw_plan(request(max_model_len=262_144), available).fits


def test_a_pool_that_the_user_sized_has_that_size_and_bounds_the_length() -> None:
    plan = draw_plan(request(kv_memory_bytes=GiB), SPARK).require()
    assert GiB - 64 * 23_040 < plan.lines[-1].num_bytes <= GiB
    assert plan.max_model_len == kv_tokens(plan)
    assert "For 262,144 tokens, set --kv-memory to 5762MiB or more" in plan.verdict
    assert draw_plan(request(kv_memory_bytes=5762 * MiB), SPARK).max_model_len == 262_144


def test_a_pool_too_small_for_the_length_that_was_fixed_is_refused() -> None:
    plan = draw_plan(request(max_model_len=65_536, kv_memory_bytes=GiB), SPARK)
    assert not plan.fits
    assert "Raise it to 1442MiB, or set --max-model-len to 46528 or less" in plan.verdict
    assert draw_plan(request(max_model_len=46_528, kv_memory_bytes=GiB), SPARK).fits
    assert draw_plan(request(max_model_len=65_536, kv_memory_bytes=1442 * MiB), SPARK).fits


def test_a_pool_in_which_no_length_fits_gives_no_length_as_a_remedy() -> None:
    plan = draw_plan(request(max_model_len=65_536, kv_memory_bytes=1024), SPARK)
    assert not plan.fits
    assert plan.verdict.endswith("Raise it to 1442MiB.")


def test_a_pool_larger_than_what_is_left_is_refused() -> None:
    plan = draw_plan(request(kv_memory_bytes=100 * GiB), SPARK)
    assert not plan.fits
    assert "--kv-memory asks for 100.00 GiB. Lower it" in plan.verdict


def test_weights_that_do_not_fit_are_refused_whatever_the_length() -> None:
    plan = draw_plan(request(), AvailableMemory(64 * GiB, "MemAvailable"))
    with pytest.raises(MemoryPlanError, match=r"Of 64.00 GiB available \(MemAvailable\).*No length fits"):
        plan.require()


def test_a_length_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--max-model-len is 2,000,000; the model has positions for 1,048,576"
    ):
        draw_plan(request(max_model_len=2_000_000), SPARK)


def test_the_floor_is_a_tenth_and_at_most_8_gib() -> None:
    assert floor_bytes(SPARK) == 8 * GiB
    assert floor_bytes(AvailableMemory(10 * GiB, "test")) == GiB


def test_the_table_has_the_lines_and_the_verdict() -> None:
    plan = draw_plan(request(), SPARK)
    table = plan.table()
    assert "weights       65.14 GiB  file headers" in table
    assert table.endswith(plan.verdict)
    assert "missing" not in table
    assert "missing" in draw_plan(request(), AvailableMemory(GiB, "test")).table()


@given(
    available_bytes=st.integers(60 * GiB, 140 * GiB),
    max_model_len=st.none() | st.integers(MIN_MODEL_LEN, 1_048_576),
    kv_memory_bytes=st.none() | st.integers(0, 40 * GiB),
    max_num_seqs=st.integers(1, 64),
    block_size_tokens=st.sampled_from([16, 64, 128]),
)
def test_a_plan_that_fits_keeps_the_floor_and_holds_one_request(
    available_bytes: int,
    max_model_len: int | None,
    kv_memory_bytes: int | None,
    max_num_seqs: int,
    block_size_tokens: int,
) -> None:
    plan_request = request(
        max_model_len, kv_memory_bytes, max_num_seqs=max_num_seqs, block_size_tokens=block_size_tokens
    )
    plan = draw_plan(plan_request, AvailableMemory(available_bytes, "test"))
    if plan.fits:
        assert plan.spare_bytes >= 0
        assert kv_tokens(plan, block_size_tokens) >= plan.max_model_len >= MIN_MODEL_LEN
        assert max_model_len in (None, plan.max_model_len)
        assert kv_memory_bytes is None or plan.lines[-1].num_bytes <= kv_memory_bytes
    else:
        pool_bytes = (
            plan_request.layout.pool_blocks_for(plan.max_model_len) * plan_request.layout.bytes_per_block
        )
        assert pool_bytes > min(left_bytes(plan), kv_memory_bytes or 0) or (
            kv_memory_bytes or 0
        ) > left_bytes(plan)
