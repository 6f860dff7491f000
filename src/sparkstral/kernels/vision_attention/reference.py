"""Plain PyTorch of kernels/vision_attention; the contract stands in the folder's `__init__`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels import rope

HEAD_DIM = 64
PAIRS = HEAD_DIM // 2


def axial_rotation(grids: Sequence[tuple[int, int]], theta: float, device: torch.device) -> Tensor:
    """grids: of each image its rows and columns of patches -> [T, 32] complex64."""
    inv_freq = (theta ** (-2 * torch.arange(PAIRS, dtype=torch.float64) / HEAD_DIM)).float().to(device)
    of_images = []
    for height, width in grids:
        rows = torch.arange(height, device=device).float()[:, None] * inv_freq[0::2]
        columns = torch.arange(width, device=device).float()[:, None] * inv_freq[1::2]
        shape = (height, width, PAIRS // 2)
        of_images.append(
            torch.cat((rows[:, None].expand(shape), columns[None].expand(shape)), dim=-1).reshape(-1, PAIRS)
        )
    angle = torch.cat(of_images)
    return torch.complex(angle.cos(), angle.sin())


def vision_attention(qkv: Tensor, rotation: Tensor, cu_seqlens: Sequence[int]) -> Tensor:
    """qkv [T, 3, N, 64], rotation [T, 32] -> [T, N * 64]."""
    q, k = (rope.rope(qkv[:, part], rotation) for part in (0, 1))
    values = []
    for begin, end in pairwise(cu_seqlens):
        of_q, of_k, of_v = (x[begin:end].transpose(0, 1)[None] for x in (q, k, qkv[:, 2]))
        attended = F.scaled_dot_product_attention(of_q, of_k, of_v, scale=HEAD_DIM**-0.5)
        values.append(attended[0].transpose(0, 1))
    return torch.cat(values).flatten(1)
