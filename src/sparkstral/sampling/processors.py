"""What a request does to its logits before a token is chosen: penalties and biases.

Owns their arithmetic, in plain PyTorch. Must not know how a token is chosen (sampler.py) or why.
Source: presence and frequency penalty and bias as OpenAI documents them, over the answer so far; repetition penalty as
Keskar et al. 2019 (CTRL, section 4.1), over prompt and answer, each token once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkstral.types import SamplingParams


@dataclass(frozen=True, slots=True)
class History:
    """A row's parameters and the tokens that they are about."""

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]


def process(logits: Tensor, rows: Sequence[History]) -> Tensor:
    """logits [R, V] float32 -> what to sample from [R, V]; `logits` itself when no row changes anything.

    Order: repetition penalty, presence and frequency penalty, bias.
    """
    if not any(row.params.changes_logits for row in rows):
        return logits
    logits = logits.clone()
    for row, history in zip(logits, rows, strict=True):
        _process_row(row, history)
    return logits


def _process_row(logits: Tensor, history: History) -> None:
    """logits [V], changed in place."""
    params = history.params

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=logits.dtype).to(logits.device)

    def index(token_ids: Sequence[int]) -> Tensor:
        return torch.tensor(token_ids, dtype=torch.int64).to(logits.device)

    if params.repetition_penalty != 1.0:
        seen = index(sorted({*history.prompt_token_ids, *history.output_token_ids}))
        before = logits[seen]
        logits[seen] = torch.where(before > 0, before / params.repetition_penalty, before * params.repetition_penalty)
    counts = Counter(history.output_token_ids)
    if counts and (params.presence_penalty or params.frequency_penalty):
        taken_off = [params.presence_penalty + params.frequency_penalty * count for count in counts.values()]
        logits[index(list(counts))] -= column(taken_off)
    if params.logit_bias:
        token_ids, biases = zip(*dict(params.logit_bias).items(), strict=True)
        logits[index(token_ids)] += column(biases)
