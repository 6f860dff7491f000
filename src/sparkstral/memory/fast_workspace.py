"""What the fast path holds beside weights and cache, in bytes.

Owns the sums over the kernels' workspaces, repeated here because this room must not import torch: a test holds them
equal to what the kernels allocate. What PyTorch's allocator takes for steps with prompts, and what graphs take, are
bounds. Must not know devices.
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
from sparkstral.types import MAX_BIASED_TOKENS, MAX_TOP_LOGPROBS, Precision
from sparkstral.units import MiB

_PREFILL_KEYS = 16_384  # expanded at once, 13 KB each: longer contexts are walked in pieces, at little cost
# Of one pass through the experts, 61 KB each: the more tokens an expert sees, the less its tiles are padding and the
# less often its weights are decoded. On an H200, 2026-12-02: 8,192 tokens take 6.6 ms a layer at once, 8.0 in halves.
_MOE_TOKENS = 16_384
_DECODED_BYTES = 32 * MiB  # a weight in FP8, or a piece of the head, for a product with many rows
_BUCKETS = 2_048  # of a row's histogram, kernels/sampling
_PROMPT_LOGITS = 32  # rows, of a prompt whose log probabilities are wanted, runner/logprobs
_ITEM_TOKENS, _ITEM_FIELDS, _BLOCK_TOKENS = 4, 16, 64  # kernels/moe_route
# Not measured yet, and generous: modules of 100 kernels, cuBLAS' workspaces, and what a graph of 440 launches holds.
_MODULES_BYTES = 768 * MiB
_GRAPH_BYTES = 12 * MiB


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """What of the kernels' configurations decides the size of their workspaces."""

    max_splits: int  # of a sequence, kernels/mla_decode
    max_few: int  # tokens, kernels/moe_experts
    sampling_stretch: int  # tokens of the vocabulary, kernels/sampling
    logprobs_stretch: int  # the same of kernels/token_logprobs


GB10_KERNELS = KernelSizes(max_splits=64, max_few=64, sampling_stretch=4096, logprobs_stretch=4096)
"""Of the shipped configurations for CUDA capability 12.1; a test holds them equal."""


@dataclass(frozen=True, slots=True)
class FastWorkspace:
    """The passes of the fast model: their largest batch, and what the kernels hold for it."""

    model: ModelConfig
    kernels: KernelSizes
    dtype_bytes: int
    max_num_batched_tokens: int
    max_num_seqs: int
    num_graphs: int  # of decode sizes
    dense: Precision = "bf16"

    def prefill_keys(self, max_model_len: int) -> int:
        return min(_PREFILL_KEYS, max(max_model_len, self.max_num_batched_tokens))

    @property
    def moe_tokens(self) -> int:
        return min(_MOE_TOKENS, self.max_num_batched_tokens)

    def lines(self, max_model_len: int) -> tuple[PlanLine, ...]:
        """With a longest request of `max_model_len` tokens."""
        kernels = (
            self.decode_bytes()
            + self.prefill_bytes(max_model_len)
            + self.moe_bytes()
            + self.sampling_bytes()
            + self.records_bytes()
            + self.logprobs_bytes()
            + self.positions_bytes(max_model_len)
        )
        return (
            PlanLine(
                "workspaces",
                kernels,
                f"of the kernels: {self.max_num_seqs} sequences, {self.prefill_keys(max_model_len):,} keys at once, "
                f"{self.moe_tokens:,} tokens through the experts",
            ),
            PlanLine(
                "activations",
                self.activation_bytes(),
                f"bound for a step of {self.max_num_batched_tokens:,} tokens, and {self.max_num_seqs} rows of "
                f"{self.model.vocab_size:,} logits{', or an image' if self.model.vision else ''}",
            ),
            PlanLine(
                "graphs",
                _MODULES_BYTES + self.num_graphs * _GRAPH_BYTES,
                f"allowance for compiled kernels, cuBLAS and {self.num_graphs} decode sizes",
            ),
        )

    def decode_bytes(self) -> int:
        """kernels/mla_decode: a float32 sum and its logarithm for each split and head."""
        rows = self.max_num_seqs * self.kernels.max_splits * self.model.num_attention_heads
        return rows * (KV_LORA_RANK + 1) * 4

    def prefill_bytes(self, max_model_len: int) -> int:
        """kernels/mla_prefill: latents and expanded keys, and what waits between pieces."""
        heads = self.model.num_attention_heads
        key = (LATENT_WIDTH + heads * (QK_NOPE_HEAD_DIM + V_HEAD_DIM)) * self.dtype_bytes
        token = heads * (V_HEAD_DIM + 2) * 4
        return self.prefill_keys(max_model_len) * key + self.max_num_batched_tokens * token

    def moe_bytes(self) -> int:
        """kernels/moe_experts and moe_route, for few tokens and for many."""
        hidden, inner, experts = (
            self.model.hidden_size,
            self.model.moe_intermediate_size,
            self.model.n_routed_experts,
        )
        top_k, few, many = NUM_EXPERTS_PER_TOK, self.kernels.max_few, self.moe_tokens
        slots, pairs = top_k + 1, few * top_k
        items = -(-few // _ITEM_TOKENS) + min(pairs, (pairs + (_ITEM_TOKENS - 1) * experts) // _ITEM_TOKENS)
        few_routing = few * (2 * hidden + hidden // 4 + 4 * experts + 8 * slots)
        few_routing += 4 * (items * _ITEM_FIELDS + 2 * experts + 1)
        few_inner = few * slots * (2 * inner + inner // 4 + 4 * hidden)
        many_routing = many * (8 * slots + 4 * top_k + 4 * slots)
        many_routing += 4 * (-(-many // _BLOCK_TOKENS) * experts + 2 * (experts + 2))
        many_inner = (many * slots * (inner + hidden) + 3 * hidden * inner) * self.dtype_bytes
        return few_routing + few_inner + many_routing + many_inner

    def sampling_bytes(self) -> int:
        """kernels/sampling: weights and listed tokens, sums of stretches, histograms."""
        stretches = -(-self.model.vocab_size // self.kernels.sampling_stretch)
        return self.max_num_seqs * (8 * self.model.vocab_size + 20 * stretches + 16 * _BUCKETS)

    def records_bytes(self) -> int:
        """kernels/penalties: what each request has said, and its biases; one record is on its way from the host."""
        return (self.max_num_seqs + 1) * (self.model.vocab_size + 2 * MAX_BIASED_TOKENS) * 4

    def logprobs_bytes(self) -> int:
        """kernels/token_logprobs: the likeliest tokens of each stretch, and of each sampled and each prompt's token,
        on the device and twice on the host."""
        stretches = -(-self.model.vocab_size // self.kernels.logprobs_stretch)
        found = max(self.max_num_seqs, _PROMPT_LOGITS) * stretches * (8 + 8 * MAX_TOP_LOGPROBS)
        prompt = -(-self.max_num_batched_tokens // _PROMPT_LOGITS) * _PROMPT_LOGITS
        return found + 3 * (self.max_num_seqs + prompt) * 4 * (1 + 2 * MAX_TOP_LOGPROBS)

    def positions_bytes(self, max_model_len: int) -> int:
        """The rotation and the query's scale of every position."""
        return max_model_len * (4 * QK_ROPE_HEAD_DIM + self.dtype_bytes)

    def activation_bytes(self) -> int:
        """Each tensor of a pass once, as if none were freed before the next layer, and a quarter for gaps."""
        model = self.model
        heads = model.num_attention_heads
        token = 4 * model.hidden_size + 2 * model.q_lora_rank + LATENT_WIDTH
        token += heads * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM + V_HEAD_DIM)
        tokens = self.max_num_batched_tokens * (token * self.dtype_bytes + 4 * QK_ROPE_HEAD_DIM + 40)
        absorbed = self.max_num_seqs * heads * LATENT_WIDTH * self.dtype_bytes
        logits = max(self.max_num_seqs, _PROMPT_LOGITS) * model.vocab_size * (4 + self.dtype_bytes)
        decoded = _DECODED_BYTES if self.dense == "fp8" else 0
        images = vision_batch_bytes(model, self.dtype_bytes)
        return max(tokens + absorbed + 2 * logits + decoded, images) * 5 // 4 + 96 * MiB
