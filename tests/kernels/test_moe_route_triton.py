from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import moe_route
from sparkstral.kernels.moe_route.triton_kernel import (
    ITEM_TOKENS,
    MATRIX_TOKENS,
    FewRouting,
    ManyRouting,
    RouteConfig,
    max_items,
    route_few,
    route_many,
)

NUM_EXPERTS, HIDDEN, TOP_K = 16, 64, 4
CONFIG = RouteConfig(rows=4, columns=32, num_warps=4, max_vector=16)
MATRIX = RouteConfig(rows=4, columns=32, num_warps=4, max_vector=0)
CPU = torch.device("cpu")


def inputs(tokens: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
    return x, (torch.randn(NUM_EXPERTS, HIDDEN, generator=generator) / 4).bfloat16()


def few(x: Tensor, router: Tensor, scaling: float = 1.0, config: RouteConfig = CONFIG) -> FewRouting:
    routing = FewRouting.allocate(16, HIDDEN, NUM_EXPERTS, TOP_K, CPU)
    routing.items.fill_(-(10**9))  # what was there before must not matter
    route_few(x, router, scaling, routing, config=config, pdl=False)
    return routing


def many(x: Tensor, router: Tensor, tile_rows: int = 16) -> ManyRouting:
    routing = ManyRouting.allocate(len(x) + 5, NUM_EXPERTS, TOP_K, CPU)
    for buffer in (routing.block_counts, routing.ranks, routing.pairs):
        buffer.fill_(-(10**9))
    route_many(x, router, 1.0, tile_rows, routing, pdl=False)
    return routing


def assert_choice(routing: FewRouting | ManyRouting, x: Tensor, router: Tensor, scaling: float = 1.0) -> None:
    weights, ids = moe_route.moe_route(x.float() @ router.float().T, TOP_K, scaling)
    tokens = len(x)
    assert torch.equal(routing.ids[:tokens, :TOP_K].long(), ids)
    torch.testing.assert_close(routing.weights[:tokens, :TOP_K], weights, rtol=0, atol=2e-6)
    assert (routing.ids[:tokens, TOP_K] == NUM_EXPERTS).all()
    assert (routing.weights[:tokens, TOP_K] == 1).all()


@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_few_choose_as_the_reference(tokens: int) -> None:
    x, router = inputs(tokens, seed=tokens)
    assert_choice(few(x, router, scaling=2.5), x, router, scaling=2.5)


@pytest.mark.parametrize("tokens", [1, 70])
def test_many_choose_as_the_reference(tokens: int) -> None:
    x, router = inputs(tokens, seed=tokens)
    assert_choice(many(x, router), x, router)


def test_a_router_that_is_off_by_a_per_cent_is_noticed() -> None:
    x, router = inputs(3, seed=3)
    with pytest.raises(AssertionError):
        assert_choice(few(x, (router.float() * 1.01).bfloat16()), x, router)


def test_of_equal_probabilities_the_lower_id_goes_first() -> None:
    x, router = inputs(2, seed=4)
    flat = torch.zeros_like(router)
    assert few(x, flat).ids[:2, :TOP_K].tolist() == [[0, 1, 2, 3]] * 2
    assert many(x, flat).ids[:2, :TOP_K].tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(("config", "most"), [(CONFIG, ITEM_TOKENS), (MATRIX, MATRIX_TOKENS)])
@pytest.mark.parametrize(("tokens", "alike"), [(1, False), (3, False), (3, True), (16, False), (16, True)])
def test_items_hold_each_pair_once_with_its_expert(tokens: int, alike: bool, config: RouteConfig, most: int) -> None:
    x, router = inputs(tokens, seed=10 + tokens)
    routing = few(x[:1].expand(tokens, -1).contiguous() if alike else x, router, config=config)
    items = routing.items[: max_items(tokens, NUM_EXPERTS, TOP_K, most)].tolist()
    pairs, sizes = [], Counter()
    for expert, count, *members in items:
        assert 0 <= count <= most
        assert 0 <= expert <= NUM_EXPERTS
        pairs += members[:count]
        sizes[expert] += count > 0
        assert all(routing.ids.flatten()[pair] == expert for pair in members[:count])
    assert sorted(pairs) == list(range(tokens * (TOP_K + 1)))
    rows = Counter(routing.ids[:tokens].flatten().tolist())
    assert {expert: -(-count // most) for expert, count in rows.items()} == +sizes
    assert routing.finished.item() == 0


def test_a_sick_token_still_has_four_experts() -> None:
    x, router = inputs(3, seed=5)
    x[1] = float("nan")
    for routing in (few(x, router), many(x, router)):
        assert len(set(routing.ids[1, :TOP_K].tolist())) == TOP_K
        assert ((routing.ids[:3] >= 0) & (routing.ids[:3] <= NUM_EXPERTS)).all()


@pytest.mark.parametrize("tokens", [1, 64, 150])
def test_pairs_are_sorted_by_expert_then_token(tokens: int) -> None:
    x, router = inputs(tokens, seed=20 + tokens)
    routing = many(x, router)
    of_pair = routing.ids[:tokens].flatten().tolist()
    pairs = routing.pairs[: tokens * (TOP_K + 1)].tolist()
    assert pairs == sorted(range(tokens * (TOP_K + 1)), key=lambda pair: (of_pair[pair], pair))
    starts = [sum(expert < e for expert in of_pair) for e in range(NUM_EXPERTS + 2)]
    assert routing.starts.tolist() == starts
    tiles = [-(-(starts[e + 1] - starts[e]) // 16) for e in range(NUM_EXPERTS + 1)]
    assert routing.tile_starts.tolist() == [sum(tiles[:e]) for e in range(NUM_EXPERTS + 2)]


def test_x_is_scaled_to_float16_exactly() -> None:
    x, router = inputs(3, seed=6)
    x[1, 16:32] *= 2.0**90
    x[2, 0:16] = 0
    routing = few(x, router)
    groups = routing.x[:3].permute(0, 2, 1, 3).reshape(3, HIDDEN // 16, 16).float()
    assert groups.abs().max() < 2**15
    back = groups * 2.0**-14 * routing.x_scale[:3, :, None]
    assert torch.equal(back.view(3, HIDDEN), x.float())


def test_x_stays_bfloat16_for_the_matrix_unit() -> None:
    x, router = inputs(3, seed=7)
    back = few(x, router, config=MATRIX).x[:3].view(torch.bfloat16).permute(0, 2, 1, 3)
    assert torch.equal(back.reshape(3, HIDDEN), x)
