"""For how many requests a decode step is captured as a graph. Must not know tensors: the plan counts them too."""

from __future__ import annotations

EVERY_SIZE_TO = 16  # padding costs a row's experts: at 5 requests padded to 8 others lost half their speed
SIZE_STEP = 8


def decode_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Every size to 16, then steps of 8, to the one that holds max_num_seqs."""
    small = range(1, min(EVERY_SIZE_TO, max_num_seqs) + 1)
    large = range(EVERY_SIZE_TO + SIZE_STEP, max_num_seqs + SIZE_STEP, SIZE_STEP)
    return (*small, *(min(size, max_num_seqs) for size in large))
