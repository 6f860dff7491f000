"""The model's constants, by their Hugging Face names.

Owns the shape of the network; must not know files or their names (checkpoint/ reads them into a
`ModelConfig`). Source: docs/model.md (params.json of Mistral-Small-4-119B-2603-NVFP4).
"""

from __future__ import annotations

from dataclasses import dataclass

EOS_TOKEN_ID = 2  # ends an answer
QK_NOPE_HEAD_DIM = 64
QK_ROPE_HEAD_DIM = 64
V_HEAD_DIM = 128
KV_LORA_RANK = 256
NUM_EXPERTS_PER_TOK = 4
N_SHARED_EXPERTS = 1  # as wide as a routed one
ROUTED_SCALING_FACTOR = 1.0
LATENT_WIDTH = KV_LORA_RANK + QK_ROPE_HEAD_DIM  # what the cache holds for a token and layer
SOFTMAX_SCALE = (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM) ** -0.5  # no YaRN mscale², no 320^-0.5

# The vision encoder (Pixtral) and what it hands to the text model; docs/model.md 1.2 and 2.4.
IMAGE_TOKEN_ID = 10  # stands for one embedding of an image
IMAGE_BREAK_TOKEN_ID = 12  # ends a row of them
IMAGE_END_TOKEN_ID = 13  # ends the last row
NUM_CHANNELS = 3
PATCH_SIZE = 14  # pixels, each way
SPATIAL_MERGE_SIZE = 2  # patches, each way, that become one embedding
TOKEN_SIZE = PATCH_SIZE * SPATIAL_MERGE_SIZE  # pixels, each way, of one embedding
PATCH_WIDTH = NUM_CHANNELS * PATCH_SIZE**2  # numbers of one patch
VISION_HEAD_DIM = 64
VISION_SCALE = VISION_HEAD_DIM**-0.5
VISION_NORM_EPS = 1e-5  # of all its norms, whatever the text model's is


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes of the vision encoder; its output has the text model's hidden_size."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_image_size: int  # pixels of the longer side: larger images are scaled down
    rope_theta: float

    @property
    def max_image_tokens(self) -> int:
        """Embeddings of the largest image."""
        return (-(-self.max_image_size // TOKEN_SIZE)) ** 2

    @property
    def max_patches(self) -> int:
        return self.max_image_tokens * SPATIAL_MERGE_SIZE**2


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes that differ between the real model and the demo; what never differs is a constant above."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    num_attention_heads: int
    q_lora_rank: int
    n_routed_experts: int
    moe_intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_factor: float  # YaRN
    rope_beta_fast: float
    rope_beta_slow: float
    original_max_position_embeddings: int
    llama_4_scaling_beta: float
    llama_4_original_max_position_embeddings: int
    max_position_embeddings: int
    vision: VisionConfig | None = None  # None: the model reads text alone
