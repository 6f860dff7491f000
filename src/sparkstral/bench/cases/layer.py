"""The attention of several layers that follow each other, as a decode step runs it: what launches cost in a row."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkstral.bench.cases.case import Case, Prepared
from sparkstral.bench.cases.dense import DECODE_TOKENS, weight_shapes
from sparkstral.bench.cases.setting import (
    BLOCK_SIZE,
    EPS,
    LATENT,
    NOPE,
    VALUE,
    Setting,
    random_pool,
    rotation_of,
    slot_bytes,
    tables_of,
)
from sparkstral.bench.cases.setting import SCALE as SOFTMAX_SCALE
from sparkstral.kernels.bf16_linear import triton_kernel as linear_kernel
from sparkstral.kernels.fp8_linear import triton_kernel as fp8_kernel
from sparkstral.kernels.latent_write import triton_kernel as latent_write_kernel
from sparkstral.kernels.mla_decode import triton_kernel as decode_kernel
from sparkstral.kernels.rms_norm import triton_kernel as rms_norm_kernel
from sparkstral.model.fast_weights import Matrix, as_held, memory_of
from sparkstral.types import Precision

NUM_LAYERS = 6
HELD: tuple[tuple[str, Precision], ...] = (("", "bf16"), (", all FP8", "fp8"))


def layer_case(s: Setting, batch: int, context: int, at_least: int, *, held: Precision = "bf16") -> Prepared:
    """norm, a, latents, q_b, absorb, attention, o, NUM_LAYERS times: figures are of all of them. `held`: projections
    and latents."""
    num_layers = 1 if at_least == 0 else NUM_LAYERS
    seq_lens, blocks = [context] * batch, math.ceil(context / BLOCK_SIZE) * batch
    table, pools = tables_of(s, seq_lens, blocks), [random_pool(s, blocks, held) for _ in range(num_layers)]
    slots = table[:, (context - 1) // BLOCK_SIZE].long() * BLOCK_SIZE + (context - 1) % BLOCK_SIZE
    lens, cu_seqlens = s.ints(seq_lens), s.ints(list(range(batch + 1)))
    decode = s.configs["mla_decode"]
    workspace = decode_kernel.allocate_workspace(decode, batch, 1, s.heads, LATENT, s.place)
    rotation, query_scale = rotation_of(s, batch), torch.ones(batch).to(s.device, s.dtype)
    stream = s.randn(batch, s.hidden)
    nothing = torch.zeros(1, batch, s.hidden).to(s.device, s.dtype)
    ones = {n: torch.ones(n).to(s.device, s.dtype) for n in (s.hidden, s.query, LATENT)}
    layers = []
    for _ in range(num_layers):
        shapes = {name: shape for name, shape in weight_shapes(s).items() if name != "head"}
        dense = {name: s.randn(*shape, std=shape[1] ** -0.5) for name, shape in shapes.items()}
        weights: dict[str, Any] = {name: as_held(weight, held) for name, weight in dense.items()}
        weights["uk"] = as_held(s.randn(s.heads, NOPE, LATENT, std=NOPE**-0.5), held)
        weights["uv"] = as_held(s.randn(s.heads, VALUE, LATENT, std=LATENT**-0.5), held)
        layers.append(weights)

    def product(x: Tensor, weight: Matrix) -> Tensor:
        if not isinstance(weight, Tensor):
            return fp8_kernel.fp8_linear(x, weight, s.dtype, config=s.configs["fp8_linear"], pdl=s.pdl)
        return linear_kernel.bf16_linear(x, weight, s.dtype, config=s.configs["bf16_linear"], pdl=s.pdl)

    def attention(weights: dict[str, Any], pool: Tensor, parts: Tensor) -> Tensor:
        x = rms_norm_kernel.add_rms_norm(
            stream, parts, ones[s.hidden], EPS, config=s.configs["rms_norm"], pdl=s.pdl
        )  # fmt: skip
        q = latent_write_kernel.write_latents(
            product(x, weights["a"]), ones[s.query], ones[LATENT], rotation, slots, EPS, pool,
            config=s.configs["latent_write"], pdl=s.pdl,
        )  # fmt: skip
        q = decode_kernel.absorb(
            product(q, weights["q_b"]), rotation, query_scale, weights["uk"],
            config=decode, pdl=s.pdl, next_weight=memory_of(weights["o"]),
        )  # fmt: skip
        out = decode_kernel.mla_decode(
            q, pool, table, cu_seqlens, lens, SOFTMAX_SCALE, weights["uv"],
            max_query_len=1, workspace=workspace, config=decode, pdl=s.pdl,
        )  # fmt: skip
        return product(out.flatten(1), weights["o"])

    def pass_through() -> None:
        parts = nothing
        for weights, pool in zip(layers, pools, strict=True):
            parts = attention(weights, pool, parts)

    num_bytes = sum(memory_of(weight).nbytes for weight in layers[0].values()) + batch * context * slot_bytes(held)
    return Prepared([pass_through] * 4, num_bytes * num_layers, num_launches=8 * num_layers)


def layer_cases(s: Setting) -> list[Case]:
    return [
        Case(
            "layer", f"attention of {NUM_LAYERS} layers, {batch} x {context}{shown}",
            partial(layer_case, s, batch, context, held=held),
        )
        for shown, held in HELD
        for context in ((70,) if s.small else (300, 30_000))
        for batch in s.counts(*DECODE_TOKENS)
    ]
