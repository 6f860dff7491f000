"""What the device remembers of a request that changes its logits, as kernels/penalties reads it.

Owns how a record is filled on the host; must not know where it lies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparkstral.kernels.penalties import IN_PROMPT
from sparkstral.sampling.processors import History
from sparkstral.types import MAX_BIASED_TOKENS


def fill_record(out: NDArray[np.int32], vocab_size: int, history: History) -> int:
    """Write a record into `out` [V + 2 B]; the number of its biases, of which at most B are served."""
    held = out[:vocab_size]
    held[:] = np.bincount(np.asarray(history.output_token_ids, dtype=np.int64), minlength=vocab_size)
    held[np.asarray(history.prompt_token_ids, dtype=np.int64)] |= IN_PROMPT
    biases = dict(history.params.logit_bias)
    token_ids = out[vocab_size : vocab_size + len(biases)]
    token_ids[:] = np.fromiter(biases.keys(), dtype=np.int32, count=len(biases))
    values = out[vocab_size + MAX_BIASED_TOKENS :][: len(biases)].view(np.float32)
    values[:] = np.fromiter(biases.values(), dtype=np.float32, count=len(biases))
    return len(biases)
