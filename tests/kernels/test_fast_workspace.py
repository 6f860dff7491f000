"""The plan's bytes of the fast path are those that the kernels allocate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

import torch

from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.penalties import triton_kernel as penalties
from sparkstral.kernels.sampling import triton_kernel as sampling
from sparkstral.kernels.token_logprobs import triton_kernel as token_logprobs
from sparkstral.memory import fast_workspace
from sparkstral.memory.fast_workspace import FastWorkspace, KernelSizes
from sparkstral.model import fast_mistral4
from sparkstral.model.fast_mistral4 import FastLimits
from sparkstral.model.rope import RotaryEmbedding
from sparkstral.runner.logprobs import ROWS_AT_ONCE, LogprobRows, padded
from tests.unit.memory.test_plan import REAL

META = torch.device("meta")
CONFIGS = KernelConfigs.shipped((9, 0))
SIZES = KernelSizes(
    CONFIGS.decode.max_splits, CONFIGS.moe.max_few, CONFIGS.sampling.stretch, CONFIGS.token_logprobs.stretch
)
PLAN = FastWorkspace(REAL, SIZES, dtype_bytes=2, max_num_batched_tokens=8192, max_num_seqs=32, num_graphs=18)
LENGTH = 40_000


def num_bytes(value: object) -> int:
    def tensors(value: object) -> Iterator[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            yield value
        elif is_dataclass(value):
            for field in fields(value):
                yield from tensors(getattr(value, field.name))

    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(value))


def allocated(plan: FastWorkspace) -> fast_mistral4.FastWorkspace:
    limits = FastLimits(
        max_num_seqs=plan.max_num_seqs,
        max_positions=LENGTH,
        prefill_keys=plan.prefill_keys(LENGTH),
        prefill_tokens=plan.max_num_batched_tokens,
        moe_tokens=plan.moe_tokens,
    )
    return fast_mistral4.FastWorkspace.allocate(CONFIGS, plan.model, limits, torch.bfloat16, META)


def test_the_workspaces_are_those_of_the_kernels() -> None:
    for plan in (PLAN, replace(PLAN, max_num_batched_tokens=1000, max_num_seqs=7)):
        found = allocated(plan)
        assert plan.decode_bytes() == num_bytes(found.decode)
        assert plan.prefill_bytes(LENGTH) == num_bytes(found.prefill)
        assert plan.moe_bytes() == num_bytes(found.moe)
        rows = sampling.allocate_workspace(CONFIGS.sampling, plan.max_num_seqs, REAL.vocab_size, META)
        assert plan.sampling_bytes() == num_bytes(rows)
        table = penalties.allocate_table(plan.max_num_seqs + 1, REAL.vocab_size, META)
        assert plan.records_bytes() == num_bytes(table)
        found_logprobs = token_logprobs.allocate_workspace(
            CONFIGS.token_logprobs, max(plan.max_num_seqs, ROWS_AT_ONCE), REAL.vocab_size, META
        )
        told = [LogprobRows(n, META).device for n in (plan.max_num_seqs, padded(plan.max_num_batched_tokens))]
        assert plan.logprobs_bytes() == num_bytes(found_logprobs) + 3 * sum(map(num_bytes, told))


def test_the_table_of_positions() -> None:
    terms = RotaryEmbedding(REAL, torch.device("cpu"), torch.bfloat16).at(torch.arange(100))
    assert PLAN.positions_bytes(100) == num_bytes(terms)


def test_lines_grow_with_what_they_are_for() -> None:
    workspaces, activations, graphs = PLAN.lines(LENGTH)
    assert replace(PLAN, max_num_seqs=64).lines(LENGTH)[0].num_bytes > workspaces.num_bytes
    assert replace(PLAN, max_num_batched_tokens=16384).lines(LENGTH)[1].num_bytes > activations.num_bytes
    decoded = fast_workspace._DECODED_BYTES
    assert replace(PLAN, dense="fp8").lines(LENGTH)[1].num_bytes == activations.num_bytes + decoded * 5 // 4
    assert decoded == fast_mistral4.DECODED_AT_ONCE * 2
    assert replace(PLAN, num_graphs=19).lines(LENGTH)[2].num_bytes > graphs.num_bytes
    assert PLAN.prefill_keys(1 << 18) == fast_workspace._PREFILL_KEYS
