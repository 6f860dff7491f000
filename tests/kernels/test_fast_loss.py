"""The loss that `verify` judges by is the same through the kernels and through the reference model."""

from __future__ import annotations

from pathlib import Path

import torch

from sparkstral.bench.loss import MSCALE_SQUARED, FastLosses, plain_losses
from sparkstral.bench.loss_text import ScoredText
from sparkstral.checkpoint.load import load
from tests.support.fast_model import small_configs, with_stacks
from tests.support.tiny_checkpoint import write_native

CPU = torch.device("cpu")


def test_the_kernels_find_the_same_losses_at_both_scales(tmp_path: Path) -> None:
    """In the interpreter, of random weights."""
    config, weights = load(write_native(tmp_path), CPU)
    texts = [ScoredText((1, 50, 60, 70, 80, 90), (1, 3, 5)), ScoredText((1, 7, 7), (2,))]
    fast = FastLosses(config, with_stacks(weights), texts, small_configs(), CPU, torch.float32)
    _, weights = load(tmp_path, CPU)  # the others' codes were reordered
    for ratio in (1.0, MSCALE_SQUARED):
        torch.testing.assert_close(
            fast.at(ratio), plain_losses(config, weights, texts, ratio, CPU), atol=0.01, rtol=0
        )
