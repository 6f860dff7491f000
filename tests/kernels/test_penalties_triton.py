"""Penalties and biases on the device, in the interpreter: the sampling room's own arithmetic, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import penalties
from sparkstral.kernels.penalties import triton_kernel
from sparkstral.kernels.penalties.triton_kernel import PenaltiesConfig
from sparkstral.sampling.processors import History, process
from sparkstral.sampling.records import fill_record
from sparkstral.types import MAX_BIASED_TOKENS, SamplingParams

V = 300  # no multiple of a stretch
CONFIG = PenaltiesConfig(stretch=128, num_warps=4)
PLAIN = SamplingParams(max_tokens=1, temperature=1.0, stop_token_ids=())
PROMPT, ANSWER = (1, 2, 299, 2, 7), (5, 2, 5, 128, 5)
ROWS = {
    "nothing": PLAIN,
    "presence": replace(PLAIN, presence_penalty=0.3),
    "frequency": replace(PLAIN, frequency_penalty=-0.7),
    "both": replace(PLAIN, presence_penalty=1.1, frequency_penalty=0.1),
    "repetition": replace(PLAIN, repetition_penalty=1.3),
    "bias": replace(PLAIN, logit_bias=((5, 2.5), (299, -100.0), (0, 0.1))),
    "many biases": replace(PLAIN, logit_bias=tuple((i, i / 7) for i in range(298))),
    "all": replace(
        PLAIN, presence_penalty=0.3, frequency_penalty=0.2, repetition_penalty=0.9, logit_bias=((5, -1.0), (128, 3.3))
    ),
}


def columns(rows: Sequence[SamplingParams], records: Sequence[int]) -> tuple[Tensor, ...]:
    return (
        torch.tensor(records, dtype=torch.int32),
        torch.tensor([row.repetition_penalty for row in rows], dtype=torch.float32),
        torch.tensor([row.presence_penalty for row in rows], dtype=torch.float64),
        torch.tensor([row.frequency_penalty for row in rows], dtype=torch.float64),
        torch.tensor([len(row.logit_bias) for row in rows], dtype=torch.int32),
    )


def table_of(histories: Sequence[History]) -> Tensor:
    """Records in reverse order, so that a row's number is not its record's."""
    table = triton_kernel.allocate_table(len(histories), V, torch.device("cpu"))
    for history, record in zip(reversed(histories), table, strict=True):
        record.fill_(12345)  # of another request
        fill_record(record.numpy(), V, history)
    return table


def logits_of(num_rows: int) -> Tensor:
    return torch.randn(num_rows, V, generator=torch.Generator().manual_seed(1)) * 3


@pytest.mark.parametrize("name", ROWS)
def test_it_is_the_sampling_rooms_arithmetic(name: str) -> None:
    """In one batch with a row that has no record."""
    histories = [History(ROWS[name], PROMPT, ANSWER), History(PLAIN, (), ()), History(ROWS["all"], ANSWER, ())]
    logits = logits_of(3)
    others = columns([history.params for history in histories], [2, -1, 0])
    before = logits.clone()
    out = torch.full_like(logits, torch.nan)
    ours = triton_kernel.change_logits(logits, table_of(histories), *others, out=out, config=CONFIG, pdl=False)
    assert torch.equal(ours, process(logits, histories))
    assert torch.equal(ours, penalties.change_logits(logits, table_of(histories), *others))
    assert torch.equal(logits, before)


def test_a_penalty_that_is_one_percent_off_is_noticed() -> None:
    history = History(ROWS["both"], PROMPT, ANSWER)
    logits, table = logits_of(1), table_of([history])
    wrong = replace(history.params, presence_penalty=1.1 * 1.01)
    out = torch.empty_like(logits)
    ours = triton_kernel.change_logits(logits, table, *columns([wrong], [0]), out=out, config=CONFIG, pdl=False)
    assert not torch.equal(ours, process(logits, [history]))


def test_tokens_are_counted_as_they_are_sampled() -> None:
    """Two rows of one record, a row without one, and a row whose token is none."""
    records = torch.tensor([1, -1, 1, 0], dtype=torch.int32)
    token_ids = torch.tensor([5, 6, 5, V])
    status = torch.tensor([0, 0, 0, 1], dtype=torch.int32)
    history = History(ROWS["all"], PROMPT, ())
    table, expected = table_of([history, history]), table_of([history, history])
    triton_kernel.note_tokens(table, records, token_ids, status, config=CONFIG, pdl=False)
    penalties.note_tokens(expected, records, token_ids, status)
    assert torch.equal(table, expected)
    afterwards = table_of([history, replace(history, output_token_ids=(5, 5))]).flip(0)
    assert torch.equal(table, afterwards)


def test_a_record_holds_the_last_of_two_biases_of_a_token() -> None:
    record = torch.zeros(V + 2 * MAX_BIASED_TOKENS, dtype=torch.int32)
    params = replace(PLAIN, logit_bias=((7, 1.0), (8, 2.0), (7, 3.0)))
    assert fill_record(record.numpy(), V, History(params, (), ())) == 2
    logits = logits_of(1)
    others = columns([replace(params, logit_bias=params.logit_bias[:2])], [0])
    out = torch.empty_like(logits)
    triton_kernel.change_logits(logits, record[None], *others, out=out, config=CONFIG, pdl=False)
    assert torch.equal(out, process(logits, [History(params, (), ())]))
