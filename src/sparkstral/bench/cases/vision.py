"""Attention among the patches of images: the largest, a usual one, and several at once."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from sparkstral.bench.cases.case import Case, Prepared, compare
from sparkstral.bench.cases.setting import Setting, turned
from sparkstral.kernels import vision_attention as reference
from sparkstral.kernels.vision_attention import triton_kernel as vision_kernel

HEADS, HEAD_DIM = 16, 64
CHECKED_ROWS = 64  # of each image


def attend_in(dtype: torch.dtype, qkv: Tensor, rotation: Tensor, rows: Tensor, begin: int, end: int) -> Tensor:
    """The patches `rows` of the image [begin, end) in plain PyTorch of `dtype` -> [R, N * 64]."""
    q = turned(qkv[rows, 0].double(), rotation[rows]).to(dtype)
    k = turned(qkv[begin:end, 1].double(), rotation[begin:end]).to(dtype)
    scores = torch.einsum("rnd,tnd->nrt", q, k) * HEAD_DIM**-0.5
    values = torch.einsum("nrt,tnd->rnd", scores.softmax(-1), qkv[begin:end, 2].to(dtype))
    return values.flatten(1)


def vision_case(s: Setting, grids: list[tuple[int, int]], _at_least: int) -> Prepared:
    heads = 2 if s.small else HEADS
    cu_seqlens = [0, *accumulate(height * width for height, width in grids)]
    config = s.configs["vision_attention"]
    qkv = s.randn(cu_seqlens[-1], 3, heads, HEAD_DIM)
    rotation = reference.axial_rotation(grids, 1e4, s.place)
    tiles = vision_kernel.plan_tiles(cu_seqlens, config, s.place)

    def attend(inputs: Tensor) -> Tensor:
        return vision_kernel.vision_attention(inputs, rotation, tiles, config=config)

    def check() -> dict[str, Any]:
        out = attend(qkv.clone())
        parts = []
        for begin, end in pairwise(cu_seqlens):
            rows = torch.linspace(begin, end - 1, min(CHECKED_ROWS, end - begin)).long().to(s.device)
            plain, exact = (attend_in(d, qkv, rotation, rows, begin, end) for d in (torch.bfloat16, torch.float64))
            parts.append((out[rows], plain, exact))
        found = compare(*(torch.cat(each) for each in zip(*parts, strict=True)))
        found["holds"] = {
            "every row is finite": bool(out.isfinite().all()),
            "repeats": torch.equal(out, attend(qkv.clone())),
        }
        return found

    # Timed on what is turned again and again: the values do not matter.
    pairs = sum((end - begin) ** 2 for begin, end in pairwise(cu_seqlens))
    num_bytes = qkv.nbytes * (1 + 2 * 2 / 3) + qkv.nbytes / 3
    inputs = qkv.clone()
    return Prepared([partial(attend, inputs)] * 2, num_bytes, 4 * HEAD_DIM * heads * pairs, num_launches=2, check=check)


def vision_cases(s: Setting) -> list[Case]:
    if s.small:
        return [Case("vision_attention", "3 images", partial(vision_case, s, [(4, 6), (2, 2), (6, 8)]))]
    sizes = {"1540 x 1540": [(110, 110)], "1024 x 768": [(56, 74)], "8 of 512 x 512": [(38, 38)] * 8}
    return [Case("vision_attention", name, partial(vision_case, s, grids)) for name, grids in sizes.items()]
