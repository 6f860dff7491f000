"""The vision encoder (Pixtral): patches of images to features, of many images at once.

Owns the order of the layers and where each patch stands in its image; kernels/vision_attention owns the attention, in
a plain form and a Triton form. Must not know files, image formats or text. Source: docs/model.md 2.4.

T patches of all images, one image after the other, row by row. D is the encoder's hidden_size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels import rms_norm, vision_attention
from sparkstral.model.config import PATCH_SIZE, VISION_HEAD_DIM, VISION_NORM_EPS, VisionConfig
from sparkstral.model.weights import VisionLayerWeights, VisionWeights

Grid = tuple[int, int]  # rows and columns of patches
Attend = Callable[[Tensor, Tensor], Tensor]  # qkv [T, 3, N, 64], rotation [T, 32] -> [T, N * 64]


def plain_attention(cu_seqlens: Sequence[int]) -> Attend:
    """The attention of a batch whose images begin and end at `cu_seqlens`, by the reference."""
    return lambda qkv, rotation: vision_attention.vision_attention(qkv, rotation, cu_seqlens)


def patches_of(image: Tensor) -> Tensor:
    """image [3, height, width], multiples of 14 -> [T, 588], row by row; channels first in a patch."""
    channels, height, width = image.shape
    grid = image.view(channels, height // PATCH_SIZE, PATCH_SIZE, width // PATCH_SIZE, PATCH_SIZE)
    return grid.permute(1, 3, 0, 2, 4).reshape(-1, channels * PATCH_SIZE**2)


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv_proj: Tensor  # [3 * D, D]
    o_proj: Tensor
    ffn_norm: Tensor
    gate_up: Tensor  # [2 * I, D]
    down: Tensor

    @classmethod
    def of(cls, weights: VisionLayerWeights, device: torch.device, dtype: torch.dtype) -> _Layer:
        def joined(*parts: Tensor) -> Tensor:
            return torch.cat([part.to(device, dtype) for part in parts])

        return cls(
            attention_norm=weights.attention_norm.to(device, dtype),
            qkv_proj=joined(weights.q_proj, weights.k_proj, weights.v_proj),
            o_proj=weights.o_proj.to(device, dtype),
            ffn_norm=weights.ffn_norm.to(device, dtype),
            gate_up=joined(weights.gate, weights.up),
            down=weights.down.to(device, dtype),
        )

    def forward(self, x: Tensor, rotation: Tensor, attend: Attend) -> Tensor:
        """x [T, D] -> [T, D]."""
        normed = rms_norm.rms_norm(x, self.attention_norm, VISION_NORM_EPS)
        qkv = F.linear(normed, self.qkv_proj).view(len(x), 3, -1, VISION_HEAD_DIM)
        x = x + F.linear(attend(qkv, rotation), self.o_proj)
        gate, up = F.linear(rms_norm.rms_norm(x, self.ffn_norm, VISION_NORM_EPS), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class PixtralEncoder:
    """The encoder on one device. `attention` makes the attention of a batch from where its images begin and end."""

    def __init__(
        self,
        config: VisionConfig,
        weights: VisionWeights,
        device: torch.device,
        dtype: torch.dtype,
        attention: Callable[[Sequence[int]], Attend] = plain_attention,
    ) -> None:
        self.config = config
        self._attention = attention
        self._patch_conv = weights.patch_conv.to(device, dtype).flatten(1)
        self._ln_pre = weights.ln_pre.to(device, dtype)
        self._layers = [_Layer.of(layer, device, dtype) for layer in weights.layers]

    @torch.inference_mode()
    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """patches [T, 588] of the encoder's dtype, `grids` of the images -> [T, D]; there is no last norm."""
        *_, x = self.hidden_states(patches, grids)
        return x

    @torch.inference_mode()
    def hidden_states(self, patches: Tensor, grids: Sequence[Grid]) -> Iterator[Tensor]:
        """The stream [T, D], as it enters the first layer and then as it leaves each."""
        cu_seqlens = [0, *accumulate(height * width for height, width in grids)]
        attend = self._attention(cu_seqlens)
        rotation = vision_attention.axial_rotation(grids, self.config.rope_theta, patches.device)
        x = rms_norm.rms_norm(F.linear(patches, self._patch_conv), self._ln_pre, VISION_NORM_EPS)
        yield x
        for layer in self._layers:
            x = layer.forward(x, rotation, attend)
            yield x
