"""Sampling, what changes its logits, and log probabilities: the references' results, and the time of each."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkstral.bench.cases.case import Case, Prepared
from sparkstral.bench.cases.setting import Setting
from sparkstral.kernels import penalties, sampling, token_logprobs
from sparkstral.kernels.penalties import triton_kernel as penalties_kernel
from sparkstral.kernels.sampling import triton_kernel as sampling_kernel
from sparkstral.kernels.token_logprobs import triton_kernel as token_logprobs_kernel
from sparkstral.types import MAX_BIASED_TOKENS

KINDS = {  # temperature, top_k, top_p, min_p
    "greedy": (0.0, 0, 1.0, 0.0),
    "plain": (0.7, 0, 1.0, 0.0),
    "min_p": (0.7, 0, 1.0, 0.05),
    "top_p": (0.7, 0, 0.95, 0.0),
    "top_k": (0.7, 50, 1.0, 0.0),
    "top_k and top_p, hot": (1.5, 2000, 0.9, 0.0),
}


def sampling_case(s: Setting, kinds: list[str], masked: bool, at_least: int) -> Prepared:
    config, rows = s.configs["sampling"], len(kinds)
    temperature, top_k, top_p, min_p = zip(*(KINDS[kind] for kind in kinds), strict=True)
    columns = [
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(min_p, dtype=torch.float32),
        torch.rand(rows, dtype=torch.float64),
        torch.randint(-(2**31), 2**31, (1, math.ceil(s.vocab / 32))).int(),
        torch.full((rows,), 0 if masked else -1, dtype=torch.int32),
    ]
    columns = [column.to(s.device) for column in columns]
    logits = [
        torch.randn(rows, s.vocab, device=s.device) * 2.5 for _ in range(s.copies(rows * s.vocab * 4, at_least, 32))
    ]
    workspace = sampling_kernel.allocate_workspace(config, rows, s.vocab, s.place)

    def draw(x: Tensor) -> tuple[Tensor, Tensor]:
        return sampling_kernel.sample(x, *columns, workspace=workspace, config=config, pdl=s.pdl)

    def check() -> dict[str, Any]:
        ours, status = draw(logits[0])
        theirs, expected = sampling.sample(logits[0], *columns)
        again, _ = draw(logits[0])
        wrong = (ours != theirs).nonzero().flatten()[:3].tolist()
        return {
            "wrong_tokens": int((ours != theirs).sum()),
            "wrong_status": int((status != expected).sum()),
            "holds": {"repeats": torch.equal(ours, again)},
            "worst": [{"index": [row], "got": int(ours[row]), "expected": int(theirs[row])} for row in wrong],
        }

    return Prepared([partial(draw, x) for x in logits], rows * s.vocab * 4, num_launches=3, check=check)


def penalties_case(s: Setting, rows: int, at_least: int) -> Prepared:
    """Every second row has a record; of the tokens that it holds one in 64, and as many biases as can be."""
    config = s.configs["penalties"]
    table = penalties_kernel.allocate_table(rows, s.vocab, s.place)
    said = torch.randint(0, 64, (rows, s.vocab))
    held = torch.where(said == 1, penalties.IN_PROMPT + 2, torch.where(said == 2, 3, 0))
    biases = min(MAX_BIASED_TOKENS, s.vocab)
    table[:, : s.vocab] = held.int().to(s.device)
    table[:, s.vocab : s.vocab + biases] = torch.randperm(s.vocab)[:biases].int().to(s.device)
    table[:, s.vocab + MAX_BIASED_TOKENS :].view(torch.float32).normal_()

    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=s.device)

    others = (
        s.ints([row if row % 2 else -1 for row in range(rows)]), column(1.2, torch.float32),
        column(0.3, torch.float64), column(0.7, torch.float64), column(biases, torch.int32),
    )  # fmt: skip
    logits = [
        torch.randn(rows, s.vocab, device=s.device) * 2.5 for _ in range(s.copies(rows * s.vocab * 4, at_least, 32))
    ]
    out = torch.empty(rows, s.vocab, device=s.device)

    def change(x: Tensor) -> Tensor:
        return penalties_kernel.change_logits(x, table, *others, out=out, config=config, pdl=s.pdl)

    def check() -> dict[str, Any]:
        expected = penalties.change_logits(logits[0], table, *others)
        return {"wrong_logits": int(((change(logits[0]) - expected).abs() > 1e-6 * (1 + expected.abs())).sum())}

    return Prepared([partial(change, x) for x in logits], rows * s.vocab * 10, check=check)


def note_case(s: Setting, rows: int, at_least: int) -> Prepared:
    config = s.configs["penalties"]
    table = penalties_kernel.allocate_table(rows, s.vocab, s.place)
    records = s.ints([row if row % 2 else -1 for row in range(rows)])
    status = s.ints([row % 4 // 3 for row in range(rows)])
    token_ids = torch.randint(s.vocab, (rows,)).to(s.device)

    def note() -> None:
        penalties_kernel.note_tokens(table, records, token_ids, status, config=config, pdl=s.pdl)

    def check() -> dict[str, Any]:
        expected = table.clone()
        penalties.note_tokens(expected, records, token_ids, status)
        note()
        return {"wrong_counts": int((table != expected).sum())}

    return Prepared([note] * 16, rows * 16, check=check)


def logprobs_case(s: Setting, rows: int, at_least: int) -> Prepared:
    """Every row wants the most."""
    config, most = s.configs["token_logprobs"], token_logprobs.MAX_TOP
    logits = [
        torch.randn(rows, s.vocab, device=s.device) * 2.5 for _ in range(s.copies(rows * s.vocab * 4, at_least, 32))
    ]
    token_ids = torch.randint(s.vocab, (rows,)).to(s.device)
    num_top = s.ints([most] * rows)
    workspace = token_logprobs_kernel.allocate_workspace(config, rows, s.vocab, s.place)
    out = token_logprobs_kernel.allocate_output(rows, s.place)

    def tell(x: Tensor) -> Tensor:
        return token_logprobs_kernel.token_logprobs(
            x, token_ids, num_top, out=out, workspace=workspace, config=config, pdl=s.pdl
        )

    def check() -> dict[str, Any]:
        ours = tell(logits[0])
        plain = token_logprobs.token_logprobs(logits[0], token_ids, num_top)
        told = torch.cat((token_ids[:, None], plain[:, 1 + most :].long()), dim=1)
        exact = torch.log_softmax(logits[0].double(), dim=-1).gather(1, told)
        errors = (ours[:, : 1 + most].view(torch.float32) - exact).abs()
        return {
            "wrong_tokens": int((ours[:, 1 + most :] != plain[:, 1 + most :]).sum()),
            "wrong_logprobs": int((errors > 1e-4).sum()),
        }

    return Prepared([partial(tell, x) for x in logits], rows * s.vocab * 4, num_launches=2, check=check)


def around_sampling_cases(s: Setting) -> list[Case]:
    counts = (3,) if s.small else (1, 8, 32)
    return [
        *(Case("penalties", f"{rows} rows", partial(penalties_case, s, rows)) for rows in counts),
        *(Case("penalties", f"note, {rows} rows", partial(note_case, s, rows)) for rows in counts[-1:]),
        *(Case("token_logprobs", f"{rows} rows", partial(logprobs_case, s, rows)) for rows in counts),
    ]


def sampling_cases(s: Setting) -> list[Case]:
    names = list(KINDS)
    mixed = [names[i % len(names)] for i in range(6 if s.small else 48)]
    found = [
        Case("sampling", "all kinds, masked", partial(sampling_case, s, mixed, True)),
        Case("sampling", "all kinds", partial(sampling_case, s, mixed, False)),
    ]
    found += around_sampling_cases(s)
    if s.small:
        return found
    for kind in names:
        counts = (1, 2, 4, 8, 16, 32) if kind == "greedy" else (1, 8, 32)
        found += [
            Case("sampling", f"{kind}, {rows} rows", partial(sampling_case, s, [kind] * rows, False)) for rows in counts
        ]
    return found
