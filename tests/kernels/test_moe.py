from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.kernels import moe_experts, moe_route

NUM_EXPERTS, HIDDEN, INNER, TOP_K = 6, 32, 24, 4


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * shape[-1] ** -0.5


def experts_one_by_one(x: Tensor, weights: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The sum as it is written in the contract, in float64."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for t in range(len(x)):
        for weight, expert in zip(weights[t].tolist(), ids[t].tolist(), strict=True):
            gate, up = (gate_up[expert].double() @ x[t].double()).chunk(2)
            out[t] += weight * (down[expert].double() @ (F.silu(gate) * up))
    return out


def stack() -> tuple[Tensor, Tensor]:
    return randn(NUM_EXPERTS, 2 * INNER, HIDDEN, seed=1), randn(NUM_EXPERTS, HIDDEN, INNER, seed=2)


def assert_experts(x: Tensor, weights: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor) -> None:
    out = moe_experts.moe_experts(x, weights, ids, gate_up, down)
    expected = experts_one_by_one(x, weights, ids, *stack())
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)


def routed(num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(num_tokens, HIDDEN, generator=torch.Generator().manual_seed(3))
    weights, ids = moe_route.moe_route(randn(num_tokens, NUM_EXPERTS, seed=4) * 3, TOP_K, 1.0)
    return x, weights, ids


def test_experts_are_summed_with_their_weights() -> None:
    assert_experts(*routed(17), *stack())


def test_a_changed_expert_is_noticed() -> None:
    gate_up, down = stack()
    gate_up[2] *= 1.01
    try:
        assert_experts(*routed(17), gate_up, down)
    except AssertionError:
        return
    raise AssertionError("a gate and up that are 1 % too large went unseen")


def test_experts_without_a_token_and_all_tokens_on_one_expert() -> None:
    x, _, _ = routed(9)
    ids = torch.full((9, 1), 5)
    assert_experts(x, torch.full((9, 1), 0.7), ids, *stack())


def test_no_token_at_all() -> None:
    out = moe_experts.moe_experts(*routed(0), *stack())
    assert out.shape == (0, HIDDEN)


def test_route_takes_the_largest_and_normalises_them() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, -2.0, 2.0, 0.5]])
    weights, ids = moe_route.moe_route(logits, TOP_K, 1.0)
    assert ids.tolist() == [[1, 4, 2, 5]]
    expected = torch.tensor([3.0, 2.0, 1.0, 0.5]).exp()
    torch.testing.assert_close(weights[0], expected / expected.sum(), rtol=1e-6, atol=0)
    assert torch.equal(moe_route.moe_route(logits, TOP_K, 2.0)[0], 2 * weights)


def test_of_equal_probabilities_the_lower_id_goes_first() -> None:
    logits = torch.zeros(3, 128)
    logits[1, 90] = 1.0
    logits[2, 0] = -1.0
    _, ids = moe_route.moe_route(logits, TOP_K, 1.0)
    assert ids.tolist() == [[0, 1, 2, 3], [90, 0, 1, 2], [1, 2, 3, 4]]


def test_one_expert_of_infinite_certainty_gives_no_nan() -> None:
    weights, ids = moe_route.moe_route(torch.tensor([[0.0, 500.0, 0.0, 0.0, 0.0, 0.0]]), TOP_K, 1.0)
    assert ids[0, 0] == 1
    assert weights.tolist() == [[1.0, 0.0, 0.0, 0.0]]
