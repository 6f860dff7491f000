"""Decode attention: ragged batches against float64, candidates at the batches and contexts of serving."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkstral.kernels.mla_decode import triton_kernel as decode_kernel
from tools.attention_cases.setting import BLOCK_SIZE, LATENT, ROPE, SCALE, VALUE, Setting, copies, latents_of, tables_of
from tools.device_timing import Case, Prepared, errors


@dataclass(frozen=True)
class DecodeInputs:
    q: Tensor
    pool: Tensor
    table: Tensor
    cu_seqlens: Tensor
    seq_lens: Tensor
    w_uv: Tensor
    max_query_len: int
    workspace: decode_kernel.DecodeWorkspace
    config: decode_kernel.DecodeConfig
    pdl: bool

    def attend(self) -> Tensor:
        return decode_kernel.mla_decode(
            self.q, self.pool, self.table, self.cu_seqlens, self.seq_lens, SCALE, self.w_uv,
            max_query_len=self.max_query_len, workspace=self.workspace, config=self.config, pdl=self.pdl,
        )  # fmt: skip


def decode_inputs(
    s: Setting, config: decode_kernel.DecodeConfig, seq_lens: list[int], queries: list[int], pdl: bool, at_least: int
) -> list[DecodeInputs]:
    blocks = sum(math.ceil(n / BLOCK_SIZE) for n in seq_lens)
    count = copies(blocks * BLOCK_SIZE * 640, at_least)
    pool = s.randn(blocks * count, BLOCK_SIZE, LATENT + ROPE)
    order = torch.randperm(blocks * count, device=s.device).int()
    first = tables_of(s, seq_lens, blocks)
    max_query_len = max(queries)
    workspace = decode_kernel.allocate_workspace(
        config, len(seq_lens), max_query_len, s.heads, LATENT, torch.device(s.device)
    )
    ends = torch.tensor([0, *queries]).cumsum(0).int().to(s.device)
    w_uv = s.randn(s.heads, VALUE, LATENT, std=LATENT**-0.5)
    return [
        DecodeInputs(
            q=s.randn(sum(queries), s.heads, LATENT + ROPE, std=0.6),  # scores of standard deviation about 1
            pool=pool, table=order[first.long() + i * blocks], cu_seqlens=ends, seq_lens=s.ints(seq_lens), w_uv=w_uv,
            max_query_len=max_query_len, workspace=workspace, config=config, pdl=pdl,
        )
        for i in range(count)
    ]  # fmt: skip


def decode_in(dtype: torch.dtype, x: DecodeInputs, request: int) -> Tensor:
    """One request of x in plain PyTorch of `dtype`."""
    begin, end = x.cu_seqlens[request : request + 2].tolist()
    q = x.q[begin:end].to(dtype)
    latents = latents_of(x.pool, x.table[request], int(x.seq_lens[request])).to(dtype)
    scores = torch.einsum("tnl,sl->tns", q, latents) * SCALE
    seen = torch.arange(len(latents), device=q.device) <= torch.arange(
        len(latents) - len(q), len(latents), device=q.device
    ).unsqueeze(-1)
    weights = scores.masked_fill(~seen[:, None], -math.inf).softmax(-1)
    return torch.einsum("tnl,nvl->tnv", weights @ latents[:, :LATENT], x.w_uv.to(dtype))


def decode_case(
    s: Setting,
    config: decode_kernel.DecodeConfig,
    seq_lens: list[int],
    queries: list[int],
    pdl: bool,
    checked: bool,
    at_least: int,
) -> Prepared:
    inputs = decode_inputs(s, config, seq_lens, queries, pdl, at_least)

    def check() -> dict[str, Any]:
        x = inputs[0]
        requests = range(len(seq_lens))
        plain, exact = (torch.cat([decode_in(d, x, r) for r in requests]) for d in (s.dtype, torch.float64))
        out = x.attend()
        found = errors(out, plain, exact)
        found["repeats"] = torch.equal(out, x.attend())
        ends, alone = x.cu_seqlens.tolist(), []
        for request in requests:
            begin, end = ends[request : request + 2]
            one = replace(
                x, q=x.q[begin:end], table=x.table[request : request + 1], cu_seqlens=s.ints([0, end - begin]),
                seq_lens=x.seq_lens[request : request + 1],
            )  # fmt: skip
            alone.append(torch.equal(one.attend(), out[begin:end]))
        found["alone_is_equal"] = all(alone)
        return found

    num_bytes = sum(seq_lens) * 640 + inputs[0].w_uv.numel() * 2
    flops = sum(2 * n * q * s.heads * 576 for n, q in zip(seq_lens, queries, strict=True))
    return Prepared([x.attend for x in inputs], num_bytes, flops, check if checked else None)


def decode_cases(s: Setting) -> list[Case]:
    base = decode_kernel.CONFIGS[s.capability]
    if s.small:
        base = replace(base, single=replace(base.single, rows=16), several=replace(base.several, rows=16), max_splits=4)
        ragged = ("ragged", base, [70, 1, 130], [2, 1, 3], False, True)
        return [Case("decode", "ragged", partial(decode_case, s, *ragged[1:]))]
    single = base.single
    candidates = {
        "shipped": base,
        "splits of 128 tokens": replace(base, split_tokens=128),
        "at most 64 splits": replace(base, max_splits=64),
        "tiles of 32 tokens": replace(base, single=replace(single, tokens=32)),
        "tiles of 64 rows": replace(base, single=base.several),
        "8 warps": replace(base, single=replace(single, num_warps=8)),
        "3 stages": replace(base, single=replace(single, num_stages=3)),
        "16 rows": replace(base, single=replace(single, rows=16), several=replace(single, rows=16)),
        "132 programs": replace(base, num_programs=132),
        "combine 32 splits": replace(base, combine_splits=32),
        "combine 128 values": replace(base, value_rows=128),
        "combine 32 values": replace(base, value_rows=32),
    }
    found = []
    for name, lens, queries in (
        ("ragged, 1 to 8 queries", [300, 5000, 64, 9000, 1], [4, 8, 1, 2, 1]),
        ("ragged, 1 query", [300, 5000, 64, 30000, 1, 8192], [1] * 6),
    ):
        found.append(Case("decode", name, partial(decode_case, s, base, lens, queries, True, True)))
    for name, config in candidates.items():
        for batch, context in ((1, 300), (1, 30000), (8, 300), (8, 8000), (32, 300)):
            work = partial(decode_case, s, config, [context] * batch, [1] * batch, True, False)
            found.append(Case("decode", f"{batch} x {context}: {name}", work))
    for batch, context in ((2, 300), (4, 300), (16, 300), (2, 30000), (4, 30000), (8, 30000), (16, 30000), (32, 30000)):
        work = partial(decode_case, s, base, [context] * batch, [1] * batch, True, False)
        found.append(Case("decode", f"{batch} x {context}: shipped", work))
    for queries in (2, 4, 8):
        for context in (300, 30000):
            work = partial(decode_case, s, base, [context], [queries], True, False)
            found.append(Case("decode", f"1 x {context}, {queries} queries: shipped", work))
    work = partial(decode_case, s, base, [300] * 31 + [30000], [1] * 32, True, False)
    return [*found, Case("decode", "31 x 300 and 1 x 30000: shipped", work)]
