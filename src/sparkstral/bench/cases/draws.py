"""Sampling: the tokens of the reference, and the time of each kind of row."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkstral.bench.cases.case import Case, Prepared
from sparkstral.bench.cases.setting import Setting
from sparkstral.kernels import sampling
from sparkstral.kernels.sampling import triton_kernel as sampling_kernel

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


def sampling_cases(s: Setting) -> list[Case]:
    names = list(KINDS)
    mixed = [names[i % len(names)] for i in range(6 if s.small else 48)]
    found = [
        Case("sampling", "all kinds, masked", partial(sampling_case, s, mixed, True)),
        Case("sampling", "all kinds", partial(sampling_case, s, mixed, False)),
    ]
    if s.small:
        return found
    for kind in names:
        counts = (1, 2, 4, 8, 16, 32) if kind == "greedy" else (1, 8, 32)
        found += [
            Case("sampling", f"{kind}, {rows} rows", partial(sampling_case, s, [kind] * rows, False)) for rows in counts
        ]
    return found
