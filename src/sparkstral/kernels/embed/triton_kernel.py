"""Triton form of kernels/embed: a program a token, one launch instead of a dozen small ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec


@dataclass(frozen=True, slots=True)
class EmbedConfig:
    num_warps: int


# 8 KiB a token: 32 elements a thread, read in four requests.
CONFIGS = {(9, 0): EmbedConfig(num_warps=4), (12, 1): EmbedConfig(num_warps=4)}


@triton.jit
def _embed(
    input_ids_ptr, sources_ptr, previous_ptr, positions_ptr, embedding_ptr, rotations_ptr, query_scales_ptr,
    x_ptr, rotation_ptr, query_scale_ptr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    rope = tl.arange(0, ROPE)
    token = tl.load(input_ids_ptr + row)
    source = tl.load(sources_ptr + row)
    if source >= 0:
        token = tl.load(previous_ptr + source)
    position = tl.load(positions_ptr + row)
    x = tl.load(embedding_ptr + token * WIDTH + lane, mask=lane < WIDTH, other=0.0)
    tl.store(x_ptr + row * WIDTH + lane, x, mask=lane < WIDTH)
    tl.store(rotation_ptr + row * ROPE + rope, tl.load(rotations_ptr + position * ROPE + rope))
    tl.store(query_scale_ptr + row, tl.load(query_scales_ptr + position))


def embed(
    input_ids: Tensor,
    sources: Tensor,
    previous: Tensor,
    positions: Tensor,
    embedding: Tensor,
    rotations: Tensor,
    query_scales: Tensor,
    *,
    config: EmbedConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes as in the contract."""
    num_tokens, width = len(input_ids), embedding.shape[1]
    x = embedding.new_empty(num_tokens, width)
    rotation = rotations.new_empty(num_tokens, rotations.shape[1])
    query_scale = query_scales.new_empty(num_tokens)
    _embed[(num_tokens,)](
        input_ids, sources, previous, positions, embedding, torch.view_as_real(rotations), query_scales,
        x, torch.view_as_real(rotation), query_scale,
        **_constants(width, 2 * rotations.shape[1]), num_warps=config.num_warps,
    )  # fmt: skip
    return x, rotation, query_scale


def _constants(width: int, rope: int) -> dict[str, int | bool]:
    return {"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "ROPE": rope}


def specs(config: EmbedConfig) -> list[KernelSpec]:
    """The real model's rows."""
    types = {
        "input_ids_ptr": "*i64", "sources_ptr": "*i32", "previous_ptr": "*i64", "positions_ptr": "*i64",
        "embedding_ptr": "*bf16", "rotations_ptr": "*fp32", "query_scales_ptr": "*bf16", "x_ptr": "*bf16",
        "rotation_ptr": "*fp32", "query_scale_ptr": "*bf16",
    }  # fmt: skip
    return [KernelSpec("tokens", _embed, types, _constants(4096, 64), config.num_warps, DEFAULT_STAGES)]
