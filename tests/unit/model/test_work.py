"""Bytes and operations of the real model, against the figures of docs/model.md."""

from __future__ import annotations

import pytest

from sparkstral.model.config import ModelConfig
from sparkstral.model.work import distinct_experts, prefill_flops, step_bytes

REAL = ModelConfig(4096, 36, 131072, 32, 1024, 128, 2048, 1e-6, 1e4, 128.0, 32.0, 1.0, 8192, 0.1, 8192, 1048576)


def test_one_decoded_token_reads_5_68_gb() -> None:
    assert step_bytes(REAL, 1, 0) == pytest.approx(5.6798e9, rel=2e-4)


def test_a_cached_token_is_23_040_bytes() -> None:
    assert step_bytes(REAL, 1, 1) - step_bytes(REAL, 1, 0) == 23_040


def test_fp8_takes_a_byte_for_each_projection_and_for_the_head() -> None:
    projections = 1344 * 4096 + 4096 * 1024 + 6144 * 256 + 4096 * 4096
    saved = step_bytes(REAL, 1, 0) - step_bytes(REAL, 1, 0, dense_bytes=1)
    assert saved == 36 * projections + 131072 * 4096


@pytest.mark.parametrize(("tokens", "distinct"), [(1, 4.0), (2, 7.9), (4, 15.3), (8, 28.7), (16, 51.0), (32, 81.7)])
def test_experts_that_tokens_share(tokens: int, distinct: float) -> None:
    assert distinct_experts(REAL, tokens) == pytest.approx(distinct, abs=0.06)


def test_a_token_of_a_prompt_costs_about_11_gflop() -> None:
    """12.2 with the head, which a prompt passes once."""
    assert prefill_flops(REAL, 1000) / 1000 == pytest.approx(11.4e9, rel=0.03)
