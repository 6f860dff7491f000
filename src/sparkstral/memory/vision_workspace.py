"""What reading images takes beside the encoder's weights: one batch of it, and the embeddings that are kept.

Owns the sizes of both, which the scheduler keeps to. Source: docs/model.md 2.4; the tensors are model/pixtral's. A
batch is over before the step's tokens are computed, so the larger of the two counts among activations.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkstral.memory.lines import PlanLine
from sparkstral.model.config import PATCH_WIDTH, SPATIAL_MERGE_SIZE, ModelConfig, VisionConfig

IMAGES_KEPT = 4  # of the largest size: those of a talk that is being read while others' wait
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class VisionWorkspace:
    """A batch has as many patches as the largest image, be they of one or of many."""

    vision: VisionConfig
    text_hidden_size: int
    dtype_bytes: int

    @classmethod
    def of(cls, model: ModelConfig, dtype_bytes: int) -> VisionWorkspace | None:
        return None if model.vision is None else cls(model.vision, model.hidden_size, dtype_bytes)

    @property
    def max_encoded(self) -> int:
        """Embeddings that one step makes."""
        return self.vision.max_image_tokens

    @property
    def capacity(self) -> int:
        """Embeddings that are kept."""
        return IMAGES_KEPT * self.vision.max_image_tokens

    def line(self) -> PlanLine:
        """What is held from step to step."""
        num_bytes = self.capacity * self.text_hidden_size * self.dtype_bytes
        return PlanLine("image embeddings", num_bytes, f"{self.capacity:,}: {IMAGES_KEPT} of the largest images")

    def batch_bytes(self) -> int:
        """Pixels and patches; the stream and its sum; of a layer either half, whichever is larger: a norm in float32
        with what comes of it, then queries, keys and values (turned in float32) and the attention's sum, or gate and
        up with their product. Then the projector's, four patches in one."""
        vision, patches = self.vision, self.vision.max_patches
        hidden, width = vision.hidden_size, vision.intermediate_size
        norm = 2 * hidden * _FLOAT32_BYTES + 2 * hidden * self.dtype_bytes
        attention = (3 + 2 + 2) * hidden * self.dtype_bytes + 4 * hidden * _FLOAT32_BYTES
        feed_forward = 5 * width * self.dtype_bytes
        turns = 3 * 64 * _FLOAT32_BYTES
        of_patches = 2 * PATCH_WIDTH * _FLOAT32_BYTES + turns + 2 * hidden * self.dtype_bytes
        of_patches += norm + max(attention, feed_forward)
        of_tokens = (4 * hidden + hidden + 4 * self.text_hidden_size) * self.dtype_bytes
        return patches * of_patches + patches // SPATIAL_MERGE_SIZE**2 * of_tokens


def vision_batch_bytes(model: ModelConfig, dtype_bytes: int) -> int:
    """0 for a model that reads no images."""
    workspace = VisionWorkspace.of(model, dtype_bytes)
    return 0 if workspace is None else workspace.batch_bytes()
