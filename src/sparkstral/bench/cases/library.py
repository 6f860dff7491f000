"""PyTorch's own operations where they compete with a kernel of ours: timed, so that the faster one is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparkstral.bench.cases.attention import LONG
from sparkstral.bench.cases.case import Case, Prepared
from sparkstral.bench.cases.dense import DECODE_TOKENS, PREFILL_TOKENS, linear_case, weight_shapes
from sparkstral.bench.cases.experts import layer, tokens
from sparkstral.bench.cases.setting import LATENT, NOPE, ROPE, SCALE, SLOTS, TOP_K, VALUE, Setting
from sparkstral.kernels.moe_route.triton_kernel import ManyRouting, route_many


def attention_case(s: Setting, backend: SDPBackend, num_tokens: int, at_least: int) -> Prepared:
    """A whole prompt over keys and values that are expanded as kernels/mla_prefill does, without its gather."""
    latents, q = s.randn(num_tokens, LATENT + ROPE), s.randn(1, s.heads, num_tokens, NOPE + ROPE)
    w_kv_b = s.randn(s.heads * (NOPE + VALUE), LATENT, std=LATENT**-0.5)

    def attend() -> Tensor:
        expanded = (latents[:, :LATENT] @ w_kv_b.T).view(num_tokens, s.heads, -1).transpose(0, 1)[None]
        k_rope = latents[:, LATENT:].expand(1, s.heads, -1, -1)
        keys, values = torch.cat((expanded[..., :NOPE], k_rope), dim=-1), expanded[..., NOPE:]
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, keys, values, is_causal=True, scale=SCALE)

    pairs = num_tokens * (num_tokens + 1) / 2
    flops = s.heads * (pairs * 2 * (NOPE + ROPE + VALUE) + num_tokens * 2 * (NOPE + VALUE) * LATENT)
    return Prepared([attend] * 2, 2 * q.nbytes, flops, num_launches=3)


def grouped_case(s: Setting, count: int, at_least: int) -> Prepared:
    """gate_up of many tokens on experts that were decoded to bfloat16 before: decoding in the product must beat it."""
    of, x = layer(s, 0), tokens(s, count, 0)
    routing = ManyRouting.allocate(count, s.experts, TOP_K, s.place)
    route_many(x, of.router, 1.0, 128, routing, pdl=False)
    weight = s.randn(s.experts + 1, 2 * s.inner, s.hidden)
    gathered, ends = x[routing.pairs.long() // SLOTS], routing.starts[1:].contiguous()
    grouped: Callable[..., Tensor] = torch._grouped_mm
    return Prepared(
        [partial(grouped, gathered, weight.transpose(-2, -1), offs=ends)] * 2,
        weight.nbytes,
        2 * SLOTS * count * 2 * s.hidden * s.inner,
    )


def library_cases(s: Setting) -> list[Case]:
    found = [
        # A prompt's logits are those of its last token.
        Case("library", f"{shape}, {m} tokens", partial(linear_case, s, shape, m, library=True))
        for shape in weight_shapes(s)
        for m in s.counts(*DECODE_TOKENS, *(() if shape == "head" else PREFILL_TOKENS))
    ]
    if s.device != "cuda":  # none of these launches a kernel of ours, and a CPU has no such backends
        return found
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        found += [
            Case("library", f"{backend.name}, {n} of {n}", partial(attention_case, s, backend, n))
            for n in (*PREFILL_TOKENS, LONG)
        ]
    return [
        *found,
        *(Case("library", f"grouped product, {n} tokens", partial(grouped_case, s, n)) for n in (4096, 8192)),
    ]
