"""The parity check: what the parity tests assert, and what every mutation must violate."""

from __future__ import annotations

import torch

from sparkstral.model.mistral4 import Mistral4
from sparkstral.model.weights import ModelWeights
from tests.parity.oracle import CONFIG, Oracle, OracleOutput
from tests.parity.paged import BLOCK_SIZE, new_pool, passes

# Values are of order 1. Both sides compute in float32, in another order: the error found is below 1e-5.
TOLERANCE = 1e-4
TOKEN_IDS = torch.randint(3, CONFIG.vocab_size, (150,), generator=torch.Generator().manual_seed(7)).tolist()
WHOLE = [len(TOKEN_IDS)]  # one pass: every layer attends in the expanded form
ONE_BY_ONE = [1] * len(TOKEN_IDS)  # a pass for each token: every layer attends in the absorbed form
NUM_BLOCKS = -(-len(TOKEN_IDS) // BLOCK_SIZE)


def build(oracle: Oracle, weights: ModelWeights | None = None) -> Mistral4:
    return Mistral4(CONFIG, weights or oracle.weights, torch.device("cpu"), torch.float32)


def assert_parity(model: Mistral4, expected: OracleOutput, sizes: list[int]) -> None:
    """Every layer's stream and all logits of TOKEN_IDS, `sizes` tokens a pass, are those of transformers."""
    pool = new_pool(model, NUM_BLOCKS)
    batches = list(passes(TOKEN_IDS, sizes, list(range(NUM_BLOCKS))))
    states = zip(*(model.hidden_states(batch, pool) for batch in batches), strict=True)
    for ours, theirs in zip(states, expected.hidden_states, strict=True):
        torch.testing.assert_close(torch.cat(ours), theirs, rtol=0, atol=TOLERANCE)
    logits = torch.cat([model.forward(batch, pool) for batch in batches])
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=TOLERANCE)
