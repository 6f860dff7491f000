"""In which forms an engine holds what it could hold in several, and what comes beside the text model.

Owns the choices as plain values, so that the plan, the engine and a command's flags mean the same; must not know files
or tensors. Sources: docs/model.md 2.4 and 3.2 (vision), 5 (draft head).
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkstral.memory.lines import PlanLine
from sparkstral.model.config import (
    KV_LORA_RANK,
    LATENT_WIDTH,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    V_HEAD_DIM,
    ModelConfig,
)
from sparkstral.types import Precision

BYTES_PER_VALUE = {"bf16": 2, "fp8": 1}
ROW_SCALE_BYTES = 4  # of a matrix in FP8: a float32 for each row
_DRAFT_MLP_WIDTH = 12_288
_DRAFT_LAYERS = 2
# 110 x 110 patches: the stream, its norm, queries, keys, values and outputs (1024 wide), and the inside of the dense
# block (4096 wide) three times, in bfloat16.


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head that proposes tokens: its weights, and the layers that have a cache of their own beside the model's."""

    num_bytes: int
    num_layers: int
    how_known: str

    @classmethod
    def published(cls, config: ModelConfig, precision: Precision = "fp8") -> DraftHead:
        """The EAGLE head of the model's makers: [embedding, hidden] -> hidden, then layers of the model's attention
        and a dense block; embedding and output head are the model's own. It is released in FP8."""
        hidden, heads, query = config.hidden_size, config.num_attention_heads, config.q_lora_rank
        attention = (
            query * hidden
            + heads * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM) * query
            + LATENT_WIDTH * hidden
            + heads * (QK_NOPE_HEAD_DIM + V_HEAD_DIM) * KV_LORA_RANK
            + hidden * heads * V_HEAD_DIM
        )
        matrices = 2 * hidden * hidden + _DRAFT_LAYERS * (attention + 3 * hidden * _DRAFT_MLP_WIDTH)
        norms = _DRAFT_LAYERS * (2 * hidden + query + KV_LORA_RANK) + hidden
        num_bytes = matrices * BYTES_PER_VALUE[precision] + 2 * norms
        return cls(num_bytes, _DRAFT_LAYERS, f"EAGLE: {matrices:,} weights in {precision}, by the published sizes")


@dataclass(frozen=True, slots=True)
class Holding:
    """What the engine's own flags choose. `dense` is of attention and output head; the experts stay as stored, and
    embedding, routers and norms in bfloat16."""

    dense: Precision = "bf16"
    kv: Precision = "bf16"
    draft: DraftHead | None = None

    def kv_layers(self, config: ModelConfig) -> int:
        """Layers that cache latents."""
        return config.num_hidden_layers + (0 if self.draft is None else self.draft.num_layers)

    def beside_lines(self) -> tuple[PlanLine, ...]:
        """What is held beside the weights of the model's own files."""
        return () if self.draft is None else (PlanLine("draft head", self.draft.num_bytes, self.draft.how_known),)
