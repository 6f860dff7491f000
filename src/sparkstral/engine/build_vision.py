"""The parts of an engine that read images: what they need, hold and compute with.

Owns the composition of encoder, projector and the memory of embeddings; build.py owns the order of all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sparkstral.memory.vision_workspace import VisionWorkspace
from sparkstral.model.config import ModelConfig
from sparkstral.model.pixtral import Attend, Grid, PixtralEncoder, plain_attention
from sparkstral.model.projector import Projector
from sparkstral.model.weights import VisionWeights
from sparkstral.runner.encoder_cache import EncoderCache


def vision_workspace(config: ModelConfig, dtype: torch.dtype) -> VisionWorkspace | None:
    if config.vision is None:
        return None
    return VisionWorkspace(config.vision, config.hidden_size, dtype.itemsize)


def why_blind(config: ModelConfig, is_refused: bool) -> str:
    """What a client is told who sends an image to an engine that reads none; "" for one that does."""
    if config.vision is not None:
        return ""
    if is_refused:
        return "this server was started with --no-vision"
    return "this model has no vision encoder"


def build_encoder(
    config: ModelConfig,
    weights: VisionWeights | None,
    device: torch.device,
    dtype: torch.dtype,
    attention: Callable[[Sequence[int]], Attend] = plain_attention,
) -> EncoderCache | None:
    """None where there is nothing to read images with."""
    workspace = vision_workspace(config, dtype)
    if config.vision is None or weights is None or workspace is None:
        return None
    encoder = PixtralEncoder(config.vision, weights, device, dtype, attention)
    projector = Projector(weights, device, dtype)

    def encode(patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        return projector.forward(encoder.forward(patches, grids), grids)

    return EncoderCache(
        encode, workspace.capacity, config.vision.max_image_tokens, config.hidden_size, device, dtype
    )
