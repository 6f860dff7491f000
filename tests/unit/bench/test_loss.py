"""Which softmax scale the weights agree with: the demo's says so, and other weights would say otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparkstral.bench import loss_text
from sparkstral.bench.loss import (
    BLOCK_SIZE,
    MSCALE_SQUARED,
    PLAIN,
    SCALED,
    judge,
    loss_of,
    num_blocks_for,
    plain_losses,
)
from sparkstral.bench.loss_text import ScoredText, texts_for
from sparkstral.checkpoint.load import load
from sparkstral.demo.location import DEMO_CHECKPOINT
from sparkstral.model.config import ModelConfig
from sparkstral.model.mistral4 import Mistral4
from sparkstral.model.weights import ModelWeights
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.runner.model_runner import ModelRunner

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def demo() -> tuple[ModelConfig, ModelWeights]:
    return load(DEMO_CHECKPOINT, CPU)


@pytest.fixture(scope="module")
def texts() -> list[ScoredText]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_text, "SKILLS", ("facts", "system_prompt"))
        patch.setattr(loss_text, "NUM_CONVERSATIONS", 6)
        return texts_for(DEMO_CHECKPOINT, vocab_size=0)


def losses(model: tuple[ModelConfig, ModelWeights], texts: list[ScoredText], ratio: float) -> Tensor:
    return plain_losses(*model, texts, ratio, CPU)


def test_the_demo_agrees_with_the_scale_that_it_was_trained_with(
    demo: tuple[ModelConfig, ModelWeights], texts: list[ScoredText]
) -> None:
    found = judge(losses(demo, texts, 1.0), losses(demo, texts, MSCALE_SQUARED))
    assert found["agrees_with"] == PLAIN
    assert found["verdict"] == "ok"


def test_weights_of_the_other_scale_would_be_found_out(
    demo: tuple[ModelConfig, ModelWeights], texts: list[ScoredText]
) -> None:
    """Queries that are 2.2058 times too small: what weights look like that were trained with the other scale."""
    config, weights = demo
    layers = tuple(
        replace(layer, attention=replace(layer.attention, q_a_norm=layer.attention.q_a_norm / MSCALE_SQUARED))
        for layer in weights.layers
    )
    other = (config, replace(weights, layers=layers))
    found = judge(losses(other, texts, 1.0), losses(other, texts, MSCALE_SQUARED))
    assert found["agrees_with"] == SCALED
    assert found["verdict"] == "failed"


def test_layer_by_layer_is_the_model(demo: tuple[ModelConfig, ModelWeights], texts: list[ScoredText]) -> None:
    config, weights = demo
    pool = allocate_latent_pool(config.num_hidden_layers, num_blocks_for(texts[:3]), BLOCK_SIZE, CPU, torch.float32)
    runner = ModelRunner(Mistral4(config, weights, CPU, torch.float32), pool, 0, {}.__getitem__)
    whole = loss_of(runner, texts[:3], at_once=2)
    torch.testing.assert_close(losses(demo, texts[:3], 1.0), whole)


def test_the_answers_alone_count(texts: list[ScoredText]) -> None:
    for text in texts:
        assert text.token_ids[text.counted[-1]] == 2  # </s>
        assert text.token_ids[text.counted[0] - 1] == 4  # [/INST]


def test_losses_that_differ_at_random_tell_nothing() -> None:
    torch.manual_seed(0)
    plain = torch.rand(500) + 11
    assert judge(plain, plain + 0.1 * torch.randn(500))["verdict"] == "undecided"
    assert judge(plain, plain)["verdict"] == "undecided"


def test_a_loss_that_is_not_finite_fails() -> None:
    plain = torch.ones(50)
    assert judge(plain, plain * float("nan"))["verdict"] == "failed"
