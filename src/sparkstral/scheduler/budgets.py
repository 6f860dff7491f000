"""How many tokens one step computes, and how prompts share what decoding leaves of it.

Owns the limits and the division; pure arithmetic on numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkstral.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of a request. Raises ConfigError if they do not go together."""

    max_num_seqs: int  # requests that hold blocks at once
    max_num_batched_tokens: int  # tokens of one step
    max_model_len: int  # tokens of prompt and output together
    vocab_size: int  # token ids are below it

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError(f"--max-num-seqs is {self.max_num_seqs}; it must be at least 1.")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens} and --max-num-seqs "
                f"{self.max_num_seqs}: a step must hold a token of each running request and one of a prompt. "
                f"Set --max-num-batched-tokens to {self.max_num_seqs + 1} or more."
            )
        if self.max_model_len < 2:
            raise ConfigError(f"--max-model-len is {self.max_model_len}; it must be at least 2.")


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
