"""The parity check can fail: each known mistake, made on purpose and alone, turns it red.

`assert_parity` is the function of tests/parity, where the untouched model passes it in both forms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparkstral.model import mla
from sparkstral.model.mistral4 import Mistral4
from sparkstral.model.weights import ExpertWeights, ModelWeights, Nvfp4Weight, Weight
from tests.parity.check import ONE_BY_ONE, TOKEN_IDS, WHOLE, assert_parity, build
from tests.parity.oracle import Oracle, OracleOutput

BOTH_FORMS = pytest.mark.parametrize("sizes", [WHOLE, ONE_BY_ONE], ids=["expanded", "absorbed"])


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def expected(oracle: Oracle) -> OracleOutput:
    return oracle.run(TOKEN_IDS)


def assert_noticed(model: Mistral4, expected: OracleOutput, sizes: list[int]) -> None:
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        assert_parity(model, expected, sizes)


def with_changed_experts(
    weights: ModelWeights, change: Callable[[ExpertWeights], ExpertWeights]
) -> ModelWeights:
    layers = (replace(layer, experts=change(layer.experts)) for layer in weights.layers)
    return replace(weights, layers=tuple(layers))


@BOTH_FORMS
def test_parity_notices_half_split_rope(
    oracle: Oracle, expected: OracleOutput, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_split(x: Tensor, rotation: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        while rotation.dim() < x.dim():
            rotation = rotation.unsqueeze(1)
        turned = torch.complex(first, second) * rotation
        return torch.cat((turned.real, turned.imag), dim=-1)

    monkeypatch.setattr("sparkstral.kernels.rope.rope", half_split)
    assert_noticed(build(oracle), expected, sizes)


@BOTH_FORMS
@pytest.mark.parametrize("scale", [320**-0.5, 128**-0.5 * 2.2058], ids=["of_the_latent", "with_mscale"])
def test_parity_notices_wrong_softmax_scale(
    oracle: Oracle, expected: OracleOutput, sizes: list[int], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mla, "SOFTMAX_SCALE", scale)
    assert_noticed(build(oracle), expected, sizes)


@BOTH_FORMS
def test_parity_notices_swapped_w1_and_w3(oracle: Oracle, expected: OracleOutput, sizes: list[int]) -> None:
    def swapped(experts: ExpertWeights) -> ExpertWeights:
        return replace(experts, gate=experts.up, up=experts.gate)

    assert_noticed(build(oracle, with_changed_experts(oracle.weights, swapped)), expected, sizes)


@BOTH_FORMS
def test_parity_notices_wkv_b_split_as_all_nope_then_all_v(
    oracle: Oracle, expected: OracleOutput, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def split(kv_b_proj: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
        nope, v = kv_b_proj.split((num_heads * 64, num_heads * 128))
        return nope.view(num_heads, 64, -1), v.view(num_heads, 128, -1)

    monkeypatch.setattr(mla, "split_kv_b_proj", split)
    assert_noticed(build(oracle), expected, sizes)


@BOTH_FORMS
def test_parity_notices_swapped_nibbles(oracle: Oracle, expected: OracleOutput, sizes: list[int]) -> None:
    def nibbles_swapped(weight: Weight) -> Weight:
        assert isinstance(weight, Nvfp4Weight)
        return replace(weight, packed=(weight.packed << 4) | (weight.packed >> 4))

    def swapped(experts: ExpertWeights) -> ExpertWeights:
        return ExpertWeights(
            *(nibbles_swapped(weight) for weight in (experts.gate, experts.up, experts.down))
        )

    assert_noticed(build(oracle, with_changed_experts(oracle.weights, swapped)), expected, sizes)
