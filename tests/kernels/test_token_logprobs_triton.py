"""Log probabilities on the device, in the interpreter, against the reference and the sampling room's own."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparkstral.kernels import token_logprobs
from sparkstral.kernels.token_logprobs import MAX_TOP, triton_kernel
from sparkstral.kernels.token_logprobs.triton_kernel import TokenLogprobsConfig
from sparkstral.sampling.logprobs import logprobs_of, read_logprobs
from sparkstral.types import TokenLogprob

V = 300  # no multiple of a stretch; the last one has fewer tokens than MAX_TOP wants
CONFIG = TokenLogprobsConfig(stretch=32, num_warps=4)


def on_device(logits: Tensor, token_ids: Tensor, num_top: Tensor) -> Tensor:
    workspace = triton_kernel.allocate_workspace(CONFIG, len(logits), logits.shape[1], torch.device("cpu"))
    for left in (workspace.peaks, workspace.sums, workspace.top_logits):
        left.fill_(math.nan)
    return triton_kernel.token_logprobs(
        logits, token_ids, num_top, out=triton_kernel.allocate_output(len(logits), logits.device),
        workspace=workspace, config=CONFIG, pdl=False,
    )  # fmt: skip


def assert_close(ours: TokenLogprob, theirs: TokenLogprob) -> None:
    assert ours.token_id == theirs.token_id
    assert [token_id for token_id, _ in ours.top] == [token_id for token_id, _ in theirs.top]
    pairs = [(ours.logprob, theirs.logprob), *((a, b) for (_, a), (_, b) in zip(ours.top, theirs.top, strict=True))]
    assert all(math.isclose(a, b, abs_tol=1e-5) for a, b in pairs)


def test_rows_of_all_kinds_are_the_sampling_rooms() -> None:
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(2)) * 4
    logits[3] += 1000  # a sum of exponentials that overflows if nothing is taken off first
    token_ids = torch.tensor([0, 299, 17, 131, 5, 6])
    num_top = torch.tensor([0, 1, 5, MAX_TOP, -1, 20], dtype=torch.int32)
    out = on_device(logits, token_ids, num_top)
    torch.testing.assert_close(
        out[:, 0][num_top >= 0].view(torch.float32),
        token_logprobs.token_logprobs(logits, token_ids, num_top)[:, 0][num_top >= 0].view(torch.float32),
    )
    for row, count in enumerate(num_top.tolist()):
        if count >= 0:
            (expected,) = logprobs_of(logits[row : row + 1], [int(token_ids[row])], count)
            assert_close(read_logprobs(out.numpy()[row], int(token_ids[row]), count), expected)
    assert not out[4].any()


def test_among_equals_the_lowest_ids_come_first() -> None:
    logits = torch.zeros(1, V)
    logits[0, [40, 41, 290]] = 1.0
    out = on_device(logits, torch.tensor([40]), torch.tensor([5], dtype=torch.int32))
    assert out[0, 1 + MAX_TOP :][:5].tolist() == [40, 41, 290, 0, 1]
    assert torch.equal(out, token_logprobs.token_logprobs(logits, torch.tensor([40]), torch.tensor([5])))


def test_a_sick_row_stays_alone_and_its_token_is_not_read() -> None:
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(3))
    logits[0, 7] = math.nan
    out = on_device(logits, torch.tensor([V, 3]), torch.tensor([2, 2], dtype=torch.int32))
    (expected,) = logprobs_of(logits[1:], [3], 2)
    assert_close(read_logprobs(out.numpy()[1], 3, 2), expected)


def test_a_logit_that_is_one_percent_off_is_noticed() -> None:
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(4)) * 4
    wrong = logits.clone()
    wrong[0, 9] *= 1.01
    num_top = torch.tensor([1], dtype=torch.int32)
    ours, theirs = (on_device(x, torch.tensor([9]), num_top)[0, :1].view(torch.float32) for x in (logits, wrong))
    assert abs(float(ours - theirs)) > 1e-4
