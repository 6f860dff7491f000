from __future__ import annotations

from dataclasses import replace

from sparkstral.kernels.mla_decode import reference as mla_decode
from sparkstral.kernels.mla_prefill import reference as mla_prefill
from sparkstral.memory.workspace import MASKED_QUERIES, MAX_SCORES, Workspace
from tests.unit.memory.test_plan import REAL

WORKSPACE = Workspace(REAL, dtype_bytes=2, max_num_batched_tokens=2048, max_num_seqs=32)


def test_the_expanded_keys_and_values_of_the_longest_request_are_in_it() -> None:
    activations, _ = WORKSPACE.lines(262_144)
    assert activations.num_bytes > 262_144 * 32 * (128 + 128) * 2
    shorter, _ = WORKSPACE.lines(131_072)
    assert shorter.num_bytes < activations.num_bytes


def test_at_short_lengths_the_experts_bound_it() -> None:
    one, _ = WORKSPACE.lines(64)
    pairs_bytes = 2048 * 4 * 4096 * (2 + 2 + 4)
    assert pairs_bytes < one.num_bytes < 2 * pairs_bytes
    assert WORKSPACE.lines(128)[0].num_bytes == one.num_bytes


def test_logits_grow_with_the_rows_that_are_sampled() -> None:
    _, logits = WORKSPACE.lines(1024)
    assert logits.num_bytes >= 32 * 131_072 * 4
    assert replace(WORKSPACE, max_num_seqs=64).lines(1024)[1].num_bytes == 2 * logits.num_bytes


def test_the_bounds_are_those_of_the_kernels() -> None:
    assert MASKED_QUERIES == mla_prefill._MASKED_QUERIES
    assert MAX_SCORES == mla_decode._MAX_SCORES
