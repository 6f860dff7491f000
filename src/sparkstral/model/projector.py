"""From the vision encoder's features to embeddings of the text model: four patches become one.

Must not know where the features come from. Source: docs/model.md 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels import rms_norm
from sparkstral.model.config import SPATIAL_MERGE_SIZE, VISION_NORM_EPS
from sparkstral.model.pixtral import Grid, PixtralEncoder
from sparkstral.model.weights import VisionWeights


class Projector:
    """On one device."""

    def __init__(self, weights: VisionWeights, device: torch.device, dtype: torch.dtype) -> None:
        self._norm = weights.projector_norm.to(device, dtype)
        self._merging_layer = weights.merging_layer.to(device, dtype)
        self._linear_1 = weights.linear_1.to(device, dtype)
        self._linear_2 = weights.linear_2.to(device, dtype)

    @torch.inference_mode()
    def forward(self, features: Tensor, grids: Sequence[Grid]) -> Tensor:
        """features [T, D], `grids` of the images -> [T / 4, H], row by row of each image."""
        features = rms_norm.rms_norm(features, self._norm, VISION_NORM_EPS)
        sizes = [height * width for height, width in grids]
        merged = torch.cat([_merge(part, grid) for part, grid in zip(torch.split(features, sizes), grids, strict=True)])
        return F.linear(F.gelu(F.linear(F.linear(merged, self._merging_layer), self._linear_1)), self._linear_2)


@dataclass(frozen=True, slots=True)
class ImageModel:
    """Encoder and projector as one."""

    encoder: PixtralEncoder
    projector: Projector

    def __call__(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """patches [T, 588] of the model's dtype, `grids` of the images -> embeddings [T / 4, H]."""
        return self.projector.forward(self.encoder.forward(patches, grids), grids)


def _merge(features: Tensor, grid: Grid) -> Tensor:
    """[h * w, D] -> [h / 2 * w / 2, D * 4]: feature channel * 4 + row * 2 + column."""
    height, width = grid
    m = SPATIAL_MERGE_SIZE
    blocks = features.view(height // m, m, width // m, m, -1)
    return blocks.permute(0, 2, 4, 1, 3).reshape(height * width // m**2, -1)
