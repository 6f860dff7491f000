"""Attention over packed documents for transformers' Mistral4Attention: each document sees itself alone.

Owns the attention function that training registers; must not know what the tokens mean. On CUDA it is torch's
variable-length flash attention; on a CPU (tests, dry runs) one causal call for each document.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

IMPLEMENTATION = "packed"
# torch 2.10 spells a causal call is_causal=True, later releases window_size=(-1, 0).
_CAUSAL: dict[str, Any] = (
    {"window_size": (-1, 0)}
    if "window_size" in inspect.signature(varlen_attn).parameters
    else {"is_causal": True}
)


class PackedAttention:
    """Attention whose document borders are set before each forward pass."""

    def __init__(self) -> None:
        self._cu_seqlens: Tensor | None = None
        self._borders: list[int] = []
        self._max_seqlen = 0

    def register(self) -> None:
        """Make this object the attention that models configured with IMPLEMENTATION call."""
        AttentionInterface.register(IMPLEMENTATION, self._attend)

    def set_documents(self, cu_seqlens: Tensor, borders: list[int]) -> None:
        """cu_seqlens [D + 1] int32 on the device; borders the same numbers as a list."""
        self._cu_seqlens = cu_seqlens
        self._borders = borders
        self._max_seqlen = max(end - begin for begin, end in itertools.pairwise(borders))

    @torch.compiler.disable  # the borders change with every batch: the compiled parts must not look at them
    def _attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **keywords: Any,
    ) -> tuple[Tensor, None]:
        """query, key, value [1, H, T, D]; returns [1, T, H, D]."""
        scale = query.shape[-1] ** -0.5
        if keywords["scaling"] != scale:
            raise ValueError(f"The softmax scale is {keywords['scaling']}, and Mistral Small 4 has {scale}.")
        if query.is_cuda:
            q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
            cu_seqlens, longest = self._cu_seqlens, self._max_seqlen
            return varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest, **_CAUSAL)[None], None
        documents = [
            scaled_dot_product_attention(
                query[:, :, begin:end], key[:, :, begin:end], value[:, :, begin:end], is_causal=True
            )
            for begin, end in zip(self._borders, self._borders[1:], strict=False)
        ]
        return torch.cat(documents, dim=2).transpose(1, 2), None
