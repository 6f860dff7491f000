"""Prefill attention with its expansion, beside PyTorch's own attention over the same keys."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from sparkstral.kernels.mla_prefill import triton_kernel as prefill_kernel
from tools.attention_cases.setting import BLOCK_SIZE, LATENT, NOPE, ROPE, SCALE, VALUE, Setting, latents_of, tables_of
from tools.device_timing import Case, Prepared, errors


def prefill_case(
    s: Setting, config: prefill_kernel.PrefillConfig, num_queries: int, seq_len: int, checked: bool, at_least: int
) -> Prepared:
    max_keys = 100 if s.small else 32768
    table = tables_of(s, [seq_len], math.ceil(seq_len / BLOCK_SIZE))
    pool = s.randn(table.shape[1], BLOCK_SIZE, LATENT + ROPE)
    q = s.randn(num_queries, s.heads, NOPE + ROPE)
    w_kv_b = s.randn(s.heads * (NOPE + VALUE), LATENT, std=LATENT**-0.5)
    device = torch.device(s.device)
    workspace = prefill_kernel.allocate_workspace(max_keys, num_queries, s.heads, s.dtype, device)
    passes = prefill_kernel.plan_passes(
        table, (0, num_queries), (seq_len,), block_size=BLOCK_SIZE, max_keys=max_keys, config=config
    )

    def attend() -> Tensor:
        return prefill_kernel.mla_prefill(q, pool, passes, w_kv_b, SCALE, workspace=workspace, config=config)

    def check() -> dict[str, Any]:
        out = attend()
        rows = torch.linspace(0, num_queries - 1, min(64, num_queries)).long().to(s.device)
        results = []
        for dtype in (s.dtype, torch.float64):
            keys, values = expand(latents_of(pool, table[0], seq_len).to(dtype), w_kv_b.to(dtype))
            scores = torch.einsum("tnd,nsd->nts", q[rows].to(dtype), keys) * SCALE
            seen = torch.arange(seq_len, device=s.device) <= (seq_len - num_queries + rows)[:, None]
            results.append((scores.masked_fill(~seen, -math.inf).softmax(-1) @ values).transpose(0, 1))
        return errors(out[rows], *results)

    return Prepared([attend] * 2, 0, attend_flops(s, num_queries, seq_len), check if checked else None)


def attend_flops(s: Setting, num_queries: int, seq_len: int) -> float:
    pairs = num_queries * (seq_len - num_queries) + num_queries * (num_queries + 1) / 2
    return s.heads * (pairs * 2 * (NOPE + ROPE + VALUE) + seq_len * 2 * (NOPE + VALUE) * LATENT)


def expand(latents: Tensor, w_kv_b: Tensor) -> tuple[Tensor, Tensor]:
    """latents [S, W + P] -> keys [N, S, 128], values [N, S, 128]."""
    expanded = (latents[:, :LATENT] @ w_kv_b.T).view(len(latents), -1, NOPE + VALUE).transpose(0, 1)
    k_rope = latents[:, LATENT:].expand(expanded.shape[0], -1, -1)
    return torch.cat((expanded[..., :NOPE], k_rope), dim=-1), expanded[..., NOPE:]


def sdpa_case(s: Setting, backend: SDPBackend, num_queries: int, seq_len: int, at_least: int) -> Prepared:
    """PyTorch's own attention over the same expansion, without the gather."""
    latents, q = s.randn(seq_len, LATENT + ROPE), s.randn(1, s.heads, num_queries, NOPE + ROPE)
    w_kv_b = s.randn(s.heads * (NOPE + VALUE), LATENT, std=LATENT**-0.5)
    # Its mask of a chunk behind a context; the flash backend alone knows it.
    bias = None if num_queries == seq_len else causal_lower_right(num_queries, seq_len)

    def attend() -> Tensor:
        keys, values = (x.unsqueeze(0) for x in expand(latents, w_kv_b))
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, is_causal=bias is None, scale=SCALE)

    return Prepared([attend] * 2, 0, attend_flops(s, num_queries, seq_len))


def prefill_cases(s: Setting) -> list[Case]:
    base = prefill_kernel.CONFIGS[s.capability]
    if s.small:
        config = replace(base, queries=16, keys=16)
        return [
            Case("prefill", f"{n} of {k}", partial(prefill_case, s, config, n, k, True))
            for n, k in ((40, 40), (20, 150))
        ]
    candidates = {
        "shipped": base,
        "64 x 64, 4 warps, 2 stages": prefill_kernel.PrefillConfig(64, 64, 4, 2),
        "128 x 128, 8 warps, 2 stages": prefill_kernel.PrefillConfig(128, 128, 8, 2),
        "128 x 64, 8 warps, 2 stages": prefill_kernel.PrefillConfig(128, 64, 8, 2),
        "128 x 32, 8 warps, 4 stages": prefill_kernel.PrefillConfig(128, 32, 8, 4),
    }
    sizes = ((1024, 1024), (4096, 4096), (8192, 8192), (30000, 30000), (2048, 30000))
    found = [
        Case("prefill", f"{n} of {k}: {name}", partial(prefill_case, s, config, n, k, name == "shipped"))
        for n, k in sizes
        for name, config in candidates.items()
    ]
    found += [
        Case("prefill", f"{n} of {k}: {backend.name} of PyTorch", partial(sdpa_case, s, backend, n, k))
        for n, k in sizes
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
    ]
    return [*found, Case("prefill", "2048 of 40000, in pieces", partial(prefill_case, s, base, 2048, 40000, True))]
