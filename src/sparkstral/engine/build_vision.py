"""The parts of an engine that read images: what they hold and compute with.

Owns the composition of encoder, projector and the memory of embeddings; build.py owns the order of all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sparkstral.memory.vision_workspace import VisionWorkspace
from sparkstral.model.config import ModelConfig
from sparkstral.model.pixtral import Attend, PixtralEncoder, plain_attention
from sparkstral.model.projector import ImageModel, Projector
from sparkstral.model.weights import VisionWeights
from sparkstral.runner.encoder_cache import EncoderCache


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
    workspace = VisionWorkspace.of(config, dtype.itemsize)
    if workspace is None or weights is None:
        return None
    model = ImageModel(
        PixtralEncoder(workspace.vision, weights, device, dtype, attention), Projector(weights, device, dtype)
    )
    largest = workspace.vision.max_image_tokens
    return EncoderCache(model, workspace.capacity, largest, config.hidden_size, device, dtype)
