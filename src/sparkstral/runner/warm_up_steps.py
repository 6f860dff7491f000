"""The steps that together use every kernel variant that serving can use: what is compiled, and run once, before ready.

Owns which numbers of tokens and requests fall into which variant, as the kernels' launches decide; must not know when
or on which device the steps are run (warm_up, compile_worker).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkstral.model.fast_batch import MAX_ABSORBED_QUERIES
from sparkstral.model.fast_mistral4 import FastLimits
from sparkstral.types import ScheduledRequest

NULL_BLOCK = 0  # its content is never read, so that anything may be written to it


def all_explained(step: Sequence[ScheduledRequest]) -> dict[int, int]:
    """For `build_fast_batch`: every row of the step goes through the whole of the last layer, as it does through the
    layers before, so that a model of one layer shows every variant."""
    return {index: len(request.token_ids) - request.samples for index, request in enumerate(step)}


def prompt_steps(
    limits: FastLimits, block_size_tokens: int, moe_bounds: Sequence[int]
) -> list[tuple[ScheduledRequest, ...]]:
    """Steps with chunks of prompts, the largest first. `moe_bounds`: numbers of tokens after which the experts'
    products take other tiles."""
    most, longest = limits.prefill_tokens, limits.max_positions
    # (queries, tokens in the cache after them, drafts among the queries) of each request. A whole prompt: powers of two
    # to 64 tokens take forms of their own, more than 32 take cuBLAS.
    alone = min(most, longest - 1)
    sizes = sorted({alone, *(bound + 1 for bound in (1, 2, 4, 8, 16, 32, 64, *moe_bounds))}, reverse=True)
    steps = [[(size, size, 0)] for size in sizes if size <= alone]
    each = min(most // limits.max_num_seqs, longest - 1)
    if each > MAX_ABSORBED_QUERIES:  # all rows give logits
        steps.insert(0, [(each, each, 0)] * limits.max_num_seqs)
    # A short chunk, and decode rows, beside a prompt.
    short = min(64, longest)
    if limits.max_num_seqs >= MAX_ABSORBED_QUERIES:
        steps.append([(3, short, 0), (2, 2, 0)])
    steps += [[(1, short, 0)] * rows + [(2, 2, 0)] for rows in (1, 9, 17, 33) if rows < limits.max_num_seqs]
    # Drafts of one request, of several, and beside a plain row; their numbers of tokens have the forms of decode steps.
    if limits.max_num_seqs >= MAX_ABSORBED_QUERIES:
        steps.append([(min(short, MAX_ABSORBED_QUERIES), short, 1)])
        if limits.max_num_seqs >= 2 * MAX_ABSORBED_QUERIES:
            steps.append([(2, short, 1)] * 2)
        steps.append([(1, short, 0), (2, short, 1)])
    # A request that is walked in three pieces: their first, middle and last pass.
    if longest > limits.prefill_keys:
        steps.append([(min(16, most), min(longest, 2 * limits.prefill_keys + 1), 0)])
    return [
        tuple(
            ScheduledRequest(
                f"warm-up {index}",
                (1,) * queries,
                seq_len - queries,
                (NULL_BLOCK,) * -(-seq_len // block_size_tokens),
                samples=True,
                num_drafts=num_drafts,
            )
            for index, (queries, seq_len, num_drafts) in enumerate(step)
        )
        for step in steps
    ]
