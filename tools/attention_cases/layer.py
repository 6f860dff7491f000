"""The attention of several layers that follow each other, as the model will run it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from sparkstral.kernels.bf16_linear import triton_kernel as linear_kernel
from sparkstral.kernels.latent_write import triton_kernel as latent_write_kernel
from sparkstral.kernels.mla_decode import triton_kernel as decode_kernel
from sparkstral.kernels.rms_norm import triton_kernel as rms_norm_kernel
from tools.attention_cases.setting import (
    BLOCK_SIZE,
    EPS,
    LATENT,
    NOPE,
    ROPE,
    SCALE,
    VALUE,
    Setting,
    rotation_of,
    tables_of,
)
from tools.device_timing import Case, Prepared


def layer_case(
    s: Setting, batch: int, context: int, linear: linear_kernel.LinearConfig, pdl: bool, at_least: int
) -> Prepared:
    """norm, a, latents, q_b, absorb, attention, o: of several layers that follow each other."""
    c = s.capability
    decode = decode_kernel.CONFIGS[c]
    if s.small:
        decode = replace(decode, single=replace(decode.single, rows=16), max_splits=4)
    num_layers = 1 if at_least == 0 else 6
    seq_lens, blocks = [context] * batch, math.ceil(context / BLOCK_SIZE) * batch
    table, pools = tables_of(s, seq_lens, blocks), s.randn(num_layers, blocks, BLOCK_SIZE, LATENT + ROPE)
    slots = table[:, (context - 1) // BLOCK_SIZE].long() * BLOCK_SIZE + (context - 1) % BLOCK_SIZE
    lens, cu_seqlens = s.ints(seq_lens), s.ints(list(range(batch + 1)))
    workspace = decode_kernel.allocate_workspace(decode, batch, 1, s.heads, LATENT, torch.device(s.device))
    rotation, query_scale = rotation_of(s, batch), torch.ones(batch, device=s.device).to(s.dtype)
    stream = s.randn(batch, s.hidden)
    ones = {n: torch.ones(n).to(s.device, s.dtype) for n in (s.hidden, s.query, LATENT)}
    layers = []
    for _ in range(num_layers):
        weights = {name: s.randn(*s.shapes[name], std=s.shapes[name][1] ** -0.5) for name in ("a", "q_b", "o")}
        weights["uk"] = s.randn(s.heads, NOPE, LATENT, std=NOPE**-0.5)
        weights["uv"] = s.randn(s.heads, VALUE, LATENT, std=LATENT**-0.5)
        layers.append(weights)
    num_bytes = sum(w.numel() * 2 for w in layers[0].values()) + batch * context * 640
    product = partial(linear_kernel.bf16_linear, out_dtype=s.dtype, config=linear, pdl=pdl)

    def attention(weights: dict[str, Tensor], pool: Tensor, parts: Tensor) -> Tensor:
        x = rms_norm_kernel.add_rms_norm(
            stream, parts, ones[s.hidden], EPS, config=rms_norm_kernel.CONFIGS[c], pdl=pdl
        )  # fmt: skip
        q = latent_write_kernel.write_latents(
            product(x, weights["a"]), ones[s.query], ones[LATENT], rotation, slots, EPS, pool,
            config=latent_write_kernel.CONFIGS[c], pdl=pdl,
        )  # fmt: skip
        q = decode_kernel.absorb(
            product(q, weights["q_b"]), rotation, query_scale, weights["uk"], config=decode, pdl=pdl
        )
        out = decode_kernel.mla_decode(
            q, pool, table, cu_seqlens, lens, SCALE, weights["uv"],
            max_query_len=1, workspace=workspace, config=decode, pdl=pdl,
        )  # fmt: skip
        return product(out.flatten(1), weights["o"])

    def pass_through() -> None:
        parts = torch.zeros(1, batch, s.hidden, device=s.device)
        for weights, pool in zip(layers, pools, strict=True):
            parts = attention(weights, pool, parts)

    # One call is all layers: bytes are those of all, microseconds are reported for all too.
    return Prepared([pass_through] * 4, num_bytes * num_layers)


def layer_cases(s: Setting) -> list[Case]:
    base = linear_kernel.CONFIGS[s.capability]
    if s.small:
        config = replace(base, rows=16, depth=32, fma_elements=1024, max_fma_tokens=2)
        return [Case("layer", f"{batch} x 70", partial(layer_case, s, batch, 70, config, False)) for batch in (1, 3)]
    found = []
    for batch in (1, 2, 4, 8, 16, 32):
        for context in (300, 30000):
            forms = [("shipped", base, True)]
            if batch in (1, 8, 32) and context == 300:
                forms += [("no pdl", base, False), ("tiles alone", replace(base, max_fma_tokens=0), True)]
            for name, config, pdl in forms:
                work = partial(layer_case, s, batch, context, config, pdl)
                found.append(Case("layer", f"{batch} x {context}, 6 layers: {name}", work, {"layers": 6}))
    return found
