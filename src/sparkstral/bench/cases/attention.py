"""Attention over cached latents: decode steps, drafts and prompts, alone and in ragged batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkstral.bench.cases.case import Case, Prepared, compare
from sparkstral.bench.cases.setting import (
    BLOCK_SIZE,
    LATENT,
    NOPE,
    ROPE,
    SCALE,
    VALUE,
    Setting,
    latents_of,
    random_pool,
    slot_bytes,
    tables_of,
)
from sparkstral.kernels.mla_decode import triton_kernel as decode_kernel
from sparkstral.kernels.mla_prefill import triton_kernel as prefill_kernel
from sparkstral.types import Precision

LONG = 30_000  # tokens of a long context
SHORT = 300
CACHES: tuple[tuple[str, Precision], ...] = (("", "bf16"), (", KV FP8", "fp8"))  # what a case's name says of each


@dataclass(frozen=True)
class DecodeInputs:
    s: Setting
    q: Tensor
    pool: Tensor
    table: Tensor
    cu_seqlens: Tensor
    seq_lens: Tensor
    w_uv: Tensor
    max_query_len: int
    workspace: decode_kernel.DecodeWorkspace

    def attend(self) -> Tensor:
        return decode_kernel.mla_decode(
            self.q, self.pool, self.table, self.cu_seqlens, self.seq_lens, SCALE, self.w_uv,
            max_query_len=self.max_query_len, workspace=self.workspace, config=self.s.configs["mla_decode"],
            pdl=self.s.pdl,
        )  # fmt: skip


def decode_inputs(
    s: Setting, seq_lens: list[int], queries: list[int], kv: Precision, at_least: int
) -> list[DecodeInputs]:
    blocks = sum(math.ceil(n / BLOCK_SIZE) for n in seq_lens)
    count = s.copies(blocks * BLOCK_SIZE * slot_bytes(kv), at_least)
    pool = random_pool(s, blocks * count, kv)
    order = torch.randperm(blocks * count).int()
    first = tables_of(s, seq_lens, blocks)
    max_query_len = max(queries)
    workspace = decode_kernel.allocate_workspace(
        s.configs["mla_decode"], len(seq_lens), max_query_len, s.heads, LATENT, s.place
    )
    order, ends = order.to(s.device), s.ints([sum(queries[:i]) for i in range(len(queries) + 1)])
    w_uv = s.randn(s.heads, VALUE, LATENT, std=LATENT**-0.5)
    return [
        DecodeInputs(
            s, q=s.randn(sum(queries), s.heads, LATENT + ROPE, std=0.6),  # scores of standard deviation about 1
            pool=pool, table=order[first.long() + i * blocks], cu_seqlens=ends, seq_lens=s.ints(seq_lens), w_uv=w_uv,
            max_query_len=max_query_len, workspace=workspace,
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
    s: Setting, seq_lens: list[int], queries: list[int], at_least: int, *, kv: Precision = "bf16"
) -> Prepared:
    inputs = decode_inputs(s, seq_lens, queries, kv, at_least)

    def check() -> dict[str, Any]:
        x = inputs[0]
        requests = range(len(seq_lens))
        plain, exact = (torch.cat([decode_in(d, x, r) for r in requests]) for d in (torch.bfloat16, torch.float64))
        out = x.attend()
        found = compare(out, plain, exact)
        ends, alone = x.cu_seqlens.tolist(), []
        for request in requests:
            begin, end = ends[request : request + 2]
            one = replace(
                x, q=x.q[begin:end], table=x.table[request : request + 1], cu_seqlens=s.ints([0, end - begin]),
                seq_lens=x.seq_lens[request : request + 1],
            )  # fmt: skip
            alone.append(torch.equal(one.attend(), out[begin:end]))
        found["holds"] = {"repeats": torch.equal(out, x.attend()), "alone as in the batch": all(alone)}
        return found

    num_bytes = sum(seq_lens) * slot_bytes(kv) + inputs[0].w_uv.nbytes
    return Prepared([x.attend for x in inputs], num_bytes, num_launches=2, check=check)


def decode_cases(s: Setting) -> list[Case]:
    if s.small:
        lens, queries = [70, 1, 130], [2, 1, 3]
        return [
            Case("mla_decode", f"ragged, 1 to 3 queries{shown}", partial(decode_case, s, lens, queries, kv=kv))
            for shown, kv in CACHES
        ]
    return [case for shown, kv in CACHES for case in _decode_cases(s, shown, kv)]


def _decode_cases(s: Setting, shown: str, kv: Precision) -> list[Case]:
    found = [
        Case("mla_decode", f"{name}{shown}", partial(decode_case, s, lens, queries, kv=kv))
        for name, lens, queries in (
            ("ragged, 1 to 8 queries", [300, 5000, 64, 9000, 1], [4, 8, 1, 2, 1]),
            ("ragged, 1 query", [300, 5000, 64, LONG, 1, 8192], [1] * 6),
            ("31 short and 1 long", [SHORT] * 31 + [LONG], [1] * 32),
        )
    ]
    for context in (SHORT, LONG):
        for batch in (1, 2, 4, 8, 16, 32):
            work = partial(decode_case, s, [context] * batch, [1] * batch, kv=kv)
            found.append(Case("mla_decode", f"attend, {batch} x {context}{shown}", work))
    drafts = [
        Case(
            "mla_decode",
            f"attend, 1 x {LONG}, {queries} queries{shown}",
            partial(decode_case, s, [LONG], [queries], kv=kv),
        )
        for queries in (2, 4, 8)
    ]
    return [*found, *drafts]


def prefill_case(s: Setting, num_queries: int, seq_len: int, at_least: int, *, kv: Precision = "bf16") -> Prepared:
    max_keys = 100 if s.small else 32768
    config = s.configs["mla_prefill"]
    table = tables_of(s, [seq_len], math.ceil(seq_len / BLOCK_SIZE))
    pool = random_pool(s, table.shape[1], kv)
    q = s.randn(num_queries, s.heads, NOPE + ROPE)
    w_kv_b = s.randn(s.heads * (NOPE + VALUE), LATENT, std=LATENT**-0.5)
    workspace = prefill_kernel.allocate_workspace(max_keys, num_queries, s.heads, s.dtype, s.place)
    passes = prefill_kernel.plan_passes(
        table, (0, num_queries), (seq_len,), block_size=BLOCK_SIZE, max_keys=max_keys, config=config
    )

    def attend() -> Tensor:
        return prefill_kernel.mla_prefill(q, pool, passes, w_kv_b, SCALE, workspace=workspace, config=config)

    def check() -> dict[str, Any]:
        out = attend()
        rows = torch.linspace(0, num_queries - 1, min(64, num_queries)).long().to(s.device)
        plain, exact = (
            attend_in(dtype, q[rows], latents_of(pool, table[0], seq_len), w_kv_b, seq_len - num_queries + rows)
            for dtype in (torch.bfloat16, torch.float64)
        )
        found = compare(out[rows], plain, exact)
        found["holds"] = {"every row is finite": bool(out.isfinite().all()), "repeats": torch.equal(out, attend())}
        return found

    pairs = num_queries * (seq_len - num_queries) + num_queries * (num_queries + 1) / 2
    flops = s.heads * (pairs * 2 * (NOPE + ROPE + VALUE) + seq_len * 2 * (NOPE + VALUE) * LATENT)
    expanded = seq_len * s.heads * (NOPE + VALUE) * 2
    num_bytes = q.nbytes * 2 + seq_len * (slot_bytes(kv) + 2 * 640) + 2 * expanded
    return Prepared([attend] * 2, num_bytes, flops, num_launches=3 * len(passes), check=check)


def attend_in(dtype: torch.dtype, q: Tensor, latents: Tensor, w_kv_b: Tensor, last_seen: Tensor) -> Tensor:
    """q [T, N, 128], latents [S, W + P] -> [T, N, 128] in plain PyTorch of `dtype`."""
    latents = latents.to(dtype)
    expanded = (latents[:, :LATENT] @ w_kv_b.to(dtype).T).view(len(latents), -1, NOPE + VALUE).transpose(0, 1)
    k_rope = latents[:, LATENT:].expand(expanded.shape[0], -1, -1)
    keys, values = torch.cat((expanded[..., :NOPE], k_rope), dim=-1), expanded[..., NOPE:]
    scores = torch.einsum("tnd,nsd->nts", q.to(dtype), keys) * SCALE
    seen = torch.arange(len(latents), device=q.device) <= last_seen[:, None]
    return (scores.masked_fill(~seen, -math.inf).softmax(-1) @ values).transpose(0, 1)


def prefill_cases(s: Setting) -> list[Case]:
    sizes = ((1024, 1024), (4096, 4096), (8192, 8192), (LONG, LONG), (2048, LONG), (2048, 40_000))
    return [
        Case("mla_prefill", f"{n} of {k}{shown}", partial(prefill_case, s, n, k, kv=kv))
        for shown, kv in CACHES
        for n, k in (((40, 40), (20, 150)) if s.small else sizes)
        if kv == "bf16" or n != k  # the latents of a chunk are gathered alike, however many keys are behind it
    ]
