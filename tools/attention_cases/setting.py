"""The model's sizes and what all cases are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkstral.kernels import rope

NOPE, ROPE, VALUE, LATENT, BLOCK_SIZE, EPS = 64, 64, 128, 256, 64, 1e-6
SCALE = 128**-0.5


@dataclass(frozen=True)
class Setting:
    """The model's sizes, and where it runs; `small` is for the interpreter."""

    device: str
    small: bool
    dtype: torch.dtype
    hidden: int
    query: int  # q_lora_rank
    heads: int
    vocab: int

    @property
    def capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability() if self.device == "cuda" else (9, 0)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {
            "a": (self.query + LATENT + ROPE, self.hidden),
            "q_b": (self.heads * (NOPE + ROPE), self.query),
            "o": (self.hidden, self.heads * VALUE),
            "head": (self.vocab, self.hidden),
        }

    def randn(self, *shape: int, std: float = 1.0) -> Tensor:
        return (torch.randn(*shape, device=self.device) * std).to(self.dtype)

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)


REAL = Setting("cuda", False, torch.bfloat16, hidden=4096, query=1024, heads=32, vocab=131072)
SMALL = Setting("cpu", True, torch.float32, hidden=128, query=64, heads=2, vocab=300)


def copies(num_bytes: float, at_least: int, most: int = 512) -> int:
    """How many rotated inputs of num_bytes it takes to exceed at_least bytes."""
    return max(1 if at_least == 0 else 2, min(most, math.ceil(at_least / num_bytes)))


def rotation_of(s: Setting, num_tokens: int) -> Tensor:
    positions = torch.arange(num_tokens, device=s.device) * 37
    return rope.rotation(positions, torch.logspace(0, -5, ROPE // 2, device=s.device))


def tables_of(s: Setting, seq_lens: list[int], num_blocks: int) -> Tensor:
    width = math.ceil(max(seq_lens) / BLOCK_SIZE)
    order = torch.randperm(num_blocks, device=s.device)
    used = [math.ceil(n / BLOCK_SIZE) for n in seq_lens]
    table = torch.zeros(len(seq_lens), width, dtype=torch.int32, device=s.device)
    for row, (begin, count) in enumerate(zip(torch.tensor([0, *used]).cumsum(0).tolist(), used, strict=False)):
        table[row, :count] = order[begin : begin + count]
    return table


def latents_of(pool: Tensor, table: Tensor, seq_len: int) -> Tensor:
    return pool[table[: math.ceil(seq_len / BLOCK_SIZE)].long()].flatten(0, 1)[:seq_len]
