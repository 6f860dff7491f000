"""How many tokens one step computes, and how prompts share what decoding leaves of it.

Owns the limits and the division; pure arithmetic on numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkstral.scheduler.encoder_cache import EncoderLimits


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of a request; `EngineConfig` has seen to it that they go together."""

    max_num_seqs: int  # requests that hold blocks at once
    max_num_batched_tokens: int  # tokens of one step
    max_model_len: int  # tokens of prompt and output together
    vocab_size: int  # token ids are below it
    encoder: EncoderLimits | None = None  # None: no image can be served
    max_sampled_rows: int = 1 << 30  # of a step: tokens that are sampled, drafts included
    drafts_for_changed_logits: bool = True  # whether the runner takes drafts of requests with penalties or biases
    max_slowdown: float | None = None  # of running answers by prompts that are computed beside them; see pacing


def share_prefill(budget: int, num_remaining: Sequence[int]) -> list[int]:
    """Divide `budget` tokens among requests that have `num_remaining` to compute, given oldest first.

    The oldest is sure of half, so that no stream of newcomers holds it up by more than a factor of two. The
    rest goes to those that need least, so that a short prompt does not wait for a long one, and few prompts
    are under way at once: a token of one that is nearly done helps somebody sooner than a token of each. What
    the shorter ones leave goes to the longer ones, and the oldest, without loss.
    """
    shares = [0] * len(num_remaining)
    if not shares:
        return shares
    shares[0] = min(num_remaining[0], (budget + 1) // 2)
    budget -= shares[0]
    for i in sorted(range(len(shares)), key=num_remaining.__getitem__):
        more = min(num_remaining[i] - shares[i], budget)
        shares[i] += more
        budget -= more
    return shares
