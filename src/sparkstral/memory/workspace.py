"""What a forward pass holds beside weights and cache, as a bound in bytes.

Owns the sums over the intermediate tensors of the plain PyTorch forward pass: for each part of a layer the
tensors that live at once. The parts follow one another, so the largest counts. Source: docs/model.md, one
decoder layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkstral.memory.lines import PlanLine
from sparkstral.memory.vision_workspace import vision_batch_bytes
from sparkstral.model.config import (
    KV_LORA_RANK,
    LATENT_WIDTH,
    NUM_EXPERTS_PER_TOK,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    V_HEAD_DIM,
    ModelConfig,
)

FLOAT32_BYTES = 4
# Bounds that the kernels' plain PyTorch keeps to, repeated here because this room must not import torch; a test holds
# them equal.
MASKED_QUERIES = 1024  # that attend at once, expanded, when a chunk follows on cached context
MAX_SCORES = 1 << 25  # of one request at a time, absorbed


@dataclass(frozen=True, slots=True)
class Workspace:
    """The forward pass of one step: its largest batch, and how wide its values are."""

    model: ModelConfig
    dtype_bytes: int
    max_num_batched_tokens: int
    max_num_seqs: int

    def lines(self, max_model_len: int) -> tuple[PlanLine, ...]:
        """Activations and logits, with a longest request of `max_model_len` tokens."""
        num_tokens = self.max_num_batched_tokens
        of_tokens = self._residual_bytes() + max(self._attention_bytes(max_model_len), self._experts_bytes())
        activation_bytes = max(of_tokens, vision_batch_bytes(self.model, self.dtype_bytes))
        return (
            PlanLine(
                "activations",
                activation_bytes,
                f"bound for a step of {num_tokens:,} tokens, a request of {max_model_len:,} attending"
                f"{', or an image' if self.model.vision else ''}",
            ),
            PlanLine(
                "logits",
                self._logits_bytes(),
                f"bound for {self.max_num_seqs} rows of {self.model.vocab_size:,}",
            ),
        )

    def _residual_bytes(self) -> int:
        """The stream, its normed copy, the branch's output and the embedding that it came from."""
        return 4 * self.max_num_batched_tokens * self.model.hidden_size * self.dtype_bytes

    def _attention_bytes(self, max_model_len: int) -> int:
        """Of the step's tokens: queries before and after rotation, outputs before and after transposing. Of
        the longest request: its latents gathered and converted, and every head's keys (made, then joined) and
        values. A request attends in one form or the other; the larger counts."""
        heads, tokens, keys = self.model.num_attention_heads, self.max_num_batched_tokens, max_model_len
        qk_width = QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM
        of_tokens = tokens * (self.model.q_lora_rank + LATENT_WIDTH + heads * 2 * (qk_width + V_HEAD_DIM))
        of_keys = keys * (3 * LATENT_WIDTH + heads * (QK_NOPE_HEAD_DIM + qk_width + 2 * V_HEAD_DIM))
        mask = min(tokens, MASKED_QUERIES) * keys  # of truth values, and as numbers
        up_projection = heads * (QK_NOPE_HEAD_DIM + V_HEAD_DIM) * KV_LORA_RANK
        expanded = (of_keys + mask + up_projection) * self.dtype_bytes + mask
        scores = min(tokens * heads * keys, max(MAX_SCORES, heads * keys))  # and their softmax
        absorbed = (2 * keys * LATENT_WIDTH + 2 * scores) * FLOAT32_BYTES
        return of_tokens * self.dtype_bytes + max(expanded, absorbed)

    def _experts_bytes(self) -> int:
        """Inputs and outputs of all pairs of token and expert, the latter in float32 too; then one expert's
        inside, at worst for all tokens; the shared one is as wide."""
        tokens, hidden = self.max_num_batched_tokens, self.model.hidden_size
        pairs = tokens * NUM_EXPERTS_PER_TOK * hidden * (2 * self.dtype_bytes + FLOAT32_BYTES)
        inside = 4 * tokens * self.model.moe_intermediate_size * self.dtype_bytes
        return pairs + inside

    def _logits_bytes(self) -> int:
        """As the head gives them, in float32, masked, sorted with int64 indices, and as probabilities."""
        return self.max_num_seqs * self.model.vocab_size * (self.dtype_bytes + 4 * FLOAT32_BYTES + 8)
