"""Hidden states and logits against transformers, past the original context, in both forms of attention."""

from __future__ import annotations

import pytest
import torch

from sparkstral.model.mistral4 import Mistral4
from tests.parity.check import ONE_BY_ONE, TOKEN_IDS, WHOLE, assert_parity, build
from tests.parity.oracle import CONFIG, Oracle, OracleOutput


def test_the_oracle_has_the_models_softmax_scale(oracle: Oracle) -> None:
    scales = [layer.self_attn.scaling for layer in oracle.model.model.layers]
    assert scales == [128**-0.5] * CONFIG.num_hidden_layers
    assert oracle.model.model.rotary_emb.attention_scaling == 1.0


def test_the_oracles_scores_have_the_spread_that_shows_errors(expected: OracleOutput) -> None:
    for attention in expected.attentions:
        spreads = [
            head[query, : query + 1]
            .log()
            .std()  # scores are the logarithm of the weights, but for a constant
            for head in attention
            for query in range(16, len(TOKEN_IDS))
        ]
        assert 0.7 < float(torch.stack(spreads).mean()) < 1.4


def test_the_oracles_router_and_logits_are_not_degenerate(expected: OracleOutput) -> None:
    assert 0.7 < float(expected.logits.std()) < 1.4
    for logits in expected.router_logits:
        assert 0.7 < float(logits.std()) < 1.4
        chosen = logits.topk(4).indices.flatten().bincount(minlength=CONFIG.n_routed_experts)
        assert int(chosen.min()) > 0


def test_positions_reach_past_the_original_context() -> None:
    assert len(TOKEN_IDS) > 2 * CONFIG.original_max_position_embeddings


@pytest.mark.parametrize("sizes", [WHOLE, ONE_BY_ONE], ids=["expanded", "absorbed"])
def test_every_hidden_state_and_all_logits_are_those_of_transformers(
    model: Mistral4, expected: OracleOutput, sizes: list[int]
) -> None:
    assert_parity(model, expected, sizes)


@pytest.mark.parametrize("sizes", [WHOLE, ONE_BY_ONE], ids=["expanded", "absorbed"])
def test_all_tokens_on_the_same_experts_and_experts_without_a_token(sizes: list[int]) -> None:
    oracle = Oracle(seed=1, crowded=True)
    expected = oracle.run(TOKEN_IDS)
    for logits in expected.router_logits:
        assert set(logits.topk(4).indices.flatten().tolist()) == {0, 1, 2, 3}
    assert_parity(build(oracle), expected, sizes)
