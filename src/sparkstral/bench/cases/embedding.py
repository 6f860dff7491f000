"""What a step starts from: rows of the embedding, and the terms of the tokens' positions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkstral.bench.cases.case import Case, Prepared, compare
from sparkstral.bench.cases.dense import DECODE_TOKENS
from sparkstral.bench.cases.setting import ROPE, Setting, rotation_of
from sparkstral.kernels import embed
from sparkstral.kernels.embed import triton_kernel as embed_kernel

POSITIONS = 1000


def embed_case(s: Setting, count: int, at_least: int) -> Prepared:
    if "embedding" not in s.kept:
        s.kept["embedding"] = s.randn(s.vocab, s.hidden)
    embedding: Tensor = s.kept["embedding"]
    rotations, scales = rotation_of(s, POSITIONS), torch.linspace(1, 1.3, POSITIONS).to(s.device, s.dtype)
    previous = torch.randint(s.vocab, (count,)).to(s.device)
    sources = s.ints([row if row % 2 else -1 for row in range(count)])
    places = torch.randint(POSITIONS, (count,)).to(s.device)
    inputs = [torch.randint(s.vocab, (count,)).to(s.device) for _ in range(32 if at_least else 1)]

    def start(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return embed_kernel.embed(
            ids, sources, previous, places, embedding, rotations, scales, config=s.configs["embed"]
        )

    def check() -> dict[str, Any]:
        ours = start(inputs[0])
        expected = embed.embed(inputs[0], sources, previous, places, embedding, rotations, scales)
        names = ("rows are equal", "rotations are equal", "scales are equal")
        holds = {name: torch.equal(a, b) for name, a, b in zip(names, ours, expected, strict=True)}
        return {**compare(ours[0], expected[0], expected[0].double()), "holds": holds}

    num_bytes = 2 * count * (s.hidden * 2 + ROPE * 4)
    return Prepared([partial(start, ids) for ids in inputs], num_bytes, check=check)


def embed_cases(s: Setting) -> list[Case]:
    counts = (*s.counts(*DECODE_TOKENS), *(() if s.small else (2048,)))
    return [Case("embed", f"{m} tokens", partial(embed_case, s, m)) for m in counts]
