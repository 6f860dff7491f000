"""The device's sampler in the interpreter, against the reference: the same token, always."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import sampling
from sparkstral.kernels.sampling import triton_kernel
from sparkstral.kernels.sampling.triton_kernel import SamplingConfig

V = 300  # no multiple of a stretch, nor of a mask's word
CONFIG = SamplingConfig(stretch=128, num_warps=4, choose_num_warps=4)
NO_MASK = torch.empty(0, 0, dtype=torch.int32)
SETTINGS = {  # temperature, top_k, top_p, min_p
    "greedy": (0.0, 0, 1.0, 0.0),
    "plain": (1.0, 0, 1.0, 0.0),
    "cold": (0.2, 0, 1.0, 0.0),
    "min_p": (1.0, 0, 1.0, 0.05),
    "top_k": (1.0, 7, 1.0, 0.0),
    "top_k 1": (1.0, 1, 1.0, 0.0),
    "top_k of more than there are": (1.0, 1000, 1.0, 0.0),
    "top_p": (1.0, 0, 0.8, 0.0),
    "top_p 0": (1.0, 0, 0.0, 0.0),
    "top_k and top_p": (1.3, 20, 0.7, 0.0),
    "all": (1.3, 40, 0.9, 0.01),
}


def columns(settings: list[tuple[float, int, float, float]], uniform: list[float]) -> list[Tensor]:
    temperature, top_k, top_p, min_p = zip(*settings, strict=True)
    return [
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(min_p, dtype=torch.float32),
        torch.tensor(uniform, dtype=torch.float64),
    ]


def on_device(logits: Tensor, *others: Tensor) -> tuple[list[int], list[int]]:
    workspace = triton_kernel.allocate_workspace(CONFIG, len(logits), logits.shape[1], torch.device("cpu"))
    workspace.bucket_counts.fill_(-1)  # left from another step
    workspace.bucket_sums.fill_(-1)
    workspace.weights.fill_(math.nan)
    token_ids, status = triton_kernel.sample(logits, *others, workspace=workspace, config=CONFIG, pdl=False)
    return token_ids.tolist(), status.tolist()


def random_logits(num_rows: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, V, generator=torch.Generator().manual_seed(seed)) * 3


def assert_same(logits: Tensor, *others: Tensor) -> None:
    token_ids, status = sampling.sample(logits, *others)
    ours, our_status = on_device(logits, *others)
    assert our_status == status.tolist()
    fine = [i for i, code in enumerate(our_status) if code == sampling.OK]
    assert [ours[i] for i in fine] == [token_ids[i] for i in fine]


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_gives_the_references_tokens(name: str) -> None:
    uniform = [0.0, 0.3, 0.77, 1 - 2**-53]
    free = torch.full((4,), -1, dtype=torch.int32)
    assert_same(random_logits(4), *columns([SETTINGS[name]] * 4, uniform), NO_MASK, free)


@pytest.mark.parametrize("name", ["top_k", "top_p", "top_k and top_p"])
def test_among_equals_the_lowest_ids_stay(name: str) -> None:
    logits = torch.cat((torch.zeros(1, V), (random_logits(2) / 3).round()))  # one level, then few
    free = torch.full((3,), -1, dtype=torch.int32)
    for uniform in (0.01, 0.5, 0.99):
        assert_same(logits, *columns([SETTINGS[name]] * 3, [uniform] * 3), NO_MASK, free)


def test_rows_of_all_kinds_in_one_batch_with_masks() -> None:
    settings = list(SETTINGS.values())
    rows = len(settings)
    generator = torch.Generator().manual_seed(5)
    bitmask = torch.randint(-(2**31), 2**31, (3, math.ceil(V / 32)), generator=generator).int()
    mask_rows = torch.tensor([i % 4 - 1 for i in range(rows)], dtype=torch.int32)
    uniform = torch.rand(rows, generator=generator).tolist()
    assert_same(random_logits(rows, 1), *columns(settings, uniform), bitmask, mask_rows)


def test_a_sick_row_and_one_that_may_say_nothing_fail_alone() -> None:
    logits = random_logits(5)
    logits[1, 299] = math.nan
    logits[2, 0] = -math.inf
    mask_rows = torch.tensor([-1, -1, -1, 0, 1], dtype=torch.int32)
    bitmask = torch.zeros(2, math.ceil(V / 32), dtype=torch.int32)
    bitmask[1, 9] = 1 << 11  # token 299 alone
    for name in ("greedy", "plain", "top_k and top_p"):
        others = *columns([SETTINGS[name]] * 5, [0.5] * 5), bitmask, mask_rows
        token_ids, status = on_device(logits, *others)
        sick, barred = sampling.NOT_FINITE, sampling.NOTHING_ALLOWED
        assert status == [sampling.OK, sick, sick, barred, sampling.OK]
        assert token_ids[4] == 299
        assert token_ids[0] == sampling.sample(logits, *others)[0][0]


def test_a_uniform_that_is_one_percent_off_is_noticed() -> None:
    free = torch.full((20,), -1, dtype=torch.int32)
    uniform = torch.linspace(0.02, 0.98, 20)
    logits = torch.zeros(20, V)
    right = on_device(logits, *columns([SETTINGS["plain"]] * 20, uniform.tolist()), NO_MASK, free)
    wrong = on_device(logits, *columns([SETTINGS["plain"]] * 20, (uniform * 1.01).tolist()), NO_MASK, free)
    assert right != wrong
