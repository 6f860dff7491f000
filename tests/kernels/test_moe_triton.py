"""In float32, with values that bfloat16 holds: the interpreter cuts instead of rounding, which would hide errors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import moe_route
from sparkstral.kernels.moe_experts.triton_few import FewConfig
from sparkstral.kernels.moe_experts.triton_kernel import MatrixConfig, MoeConfig, MoeWorkspace, TilePair, moe_block
from sparkstral.kernels.moe_experts.triton_matrix import MatrixProgram
from sparkstral.kernels.moe_route.triton_kernel import RouteConfig
from sparkstral.kernels.nvfp4_linear.triton_kernel import FewProgram, ManyTile
from tests.kernels.nvfp4_weights import StoredWeight, draw

NUM_EXPERTS, HIDDEN, INNER, TOP_K = 8, 64, 32, 4
MAX_FEW = 8
PROGRAM = FewProgram(32, 4, 2)
TILE = ManyTile(16, 32, 32, num_warps=4, num_stages=2)
CONFIG = MoeConfig(
    RouteConfig(rows=4, columns=64, num_warps=4, max_vector=MAX_FEW),
    FewConfig(PROGRAM, PROGRAM, PROGRAM, PROGRAM, token_major_max=1),
    MatrixConfig(MatrixProgram(2, unroll=1), MatrixProgram(2, unroll=1)),
    max_few=MAX_FEW,
    many=(TilePair(1 << 30, TILE, TILE),),
)
MANY = replace(CONFIG, max_few=0)
MATRIX = replace(CONFIG, max_few=16, route=replace(CONFIG.route, max_vector=0))
BY_TOKEN = replace(CONFIG, few=replace(CONFIG.few, token_major_max=MAX_FEW))


@dataclass(frozen=True)
class Block:
    router: Tensor
    gate_up: StoredWeight
    down: StoredWeight

    def run(self, x: Tensor, config: MoeConfig, residual: Tensor | None = None, max_tokens: int = 64) -> Tensor:
        workspace = MoeWorkspace.allocate(
            replace(config, max_few=16), max_tokens, HIDDEN, INNER, NUM_EXPERTS, TOP_K, x.device
        )
        for name in ("h", "y", "gate_up", "down"):  # as wide as x, see the head of the file
            many = workspace.many
            workspace = replace(workspace, many=replace(many, **{name: getattr(many, name).float()}))
        out = torch.full_like(x, float("nan"))
        moe_block(
            x, self.router, self.gate_up.pack(), self.down.pack(), residual, 1.0, out,
            workspace=workspace, config=config, pdl=False,
        )  # fmt: skip
        return out

    def expected(self, x: Tensor) -> Tensor:
        """The sum as it is written in the contract, in float64."""
        weights, ids = moe_route.moe_route(x @ self.router.T, TOP_K, 1.0)
        gate_up, down = self.gate_up.dense(), self.down.dense()
        rows = []
        for t in range(len(x)):
            chosen = [(float(weights[t, j]), int(ids[t, j])) for j in range(TOP_K)] + [(1.0, NUM_EXPERTS)]
            row = torch.zeros(HIDDEN, dtype=torch.float64)
            for weight, expert in chosen:
                gate, up = (gate_up[expert] @ x[t].double()).chunk(2)
                row += weight * (down[expert] @ (torch.nn.functional.silu(gate) * up))
            rows.append(row)
        return torch.stack(rows)


def values(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


@pytest.fixture(scope="module")
def block() -> Block:
    generator = torch.Generator().manual_seed(0)
    return Block(
        (values(NUM_EXPERTS, HIDDEN, seed=1) * 0.25).bfloat16().float(),
        draw(NUM_EXPERTS + 1, 2 * INNER, HIDDEN, parts=2, generator=generator),
        draw(NUM_EXPERTS + 1, HIDDEN, INNER, generator=generator),
    )


def assert_close(out: Tensor, expected: Tensor, config: MoeConfig) -> None:
    """Few tokens: eight products are added in float16, twice, and rows are short; many: only float32 rounds."""
    error = (out.double() - expected).abs().amax(1) / expected.abs().amax(1)
    assert (error <= (4e-3 if config.max_few else 1e-4)).all(), error


@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
@pytest.mark.parametrize("config", [CONFIG, BY_TOKEN, MATRIX], ids=["by item", "by token", "matrix"])
def test_few_tokens(block: Block, config: MoeConfig, tokens: int) -> None:
    x = values(tokens, HIDDEN, seed=tokens)
    assert_close(block.run(x, config), block.expected(x), config)


def test_more_tokens_of_an_expert_than_an_item_holds(block: Block) -> None:
    x = values(11, HIDDEN, seed=11)
    assert_close(block.run(x, MATRIX), block.expected(x), MATRIX)


@pytest.mark.parametrize("tokens", [1, 19])
def test_many_tokens(block: Block, tokens: int) -> None:
    x = values(tokens, HIDDEN, seed=tokens)
    assert_close(block.run(x, MANY), block.expected(x), MANY)


def test_many_tokens_in_several_passes(block: Block) -> None:
    """PyTorch's product of the shared expert rounds by its number of rows."""
    x = values(5, HIDDEN, seed=3)
    assert_close(block.run(x, MANY, max_tokens=3), block.run(x, MANY).double(), MANY)


@pytest.mark.parametrize("config", [CONFIG, MATRIX, MANY], ids=["few", "matrix", "many"])
def test_all_tokens_on_the_same_experts_and_none_on_the_others(block: Block, config: MoeConfig) -> None:
    router = torch.zeros(NUM_EXPERTS, HIDDEN)
    router[4:, 0] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    x = values(6, HIDDEN, seed=4)
    x[:, 0] = 8.0
    same = replace(block, router=router)
    assert_close(same.run(x, config), same.expected(x), config)


@pytest.mark.parametrize("config", [CONFIG, BY_TOKEN, MATRIX, MANY], ids=["by item", "by token", "matrix", "many"])
def test_the_residual_is_added(block: Block, config: MoeConfig) -> None:
    x, residual = values(3, HIDDEN, seed=5), values(3, HIDDEN, seed=6)
    assert_close(block.run(x, config, residual), block.expected(x) + residual, config)


@pytest.mark.parametrize("config", [CONFIG, MATRIX, MANY], ids=["few", "matrix", "many"])
@pytest.mark.parametrize("part", ["gate", "up", "down", "router"])
def test_one_per_cent_is_noticed(block: Block, config: MoeConfig, part: str) -> None:
    x = values(2, HIDDEN, seed=7)
    if part == "router":
        changed = replace(block, router=block.router * 1.05)
    elif part == "down":
        changed = replace(block, down=replace(block.down, global_scale=block.down.global_scale / 1.01))
    else:
        scale = block.gate_up.global_scale.clone()
        scale[:, ["gate", "up"].index(part)] /= 1.01
        changed = replace(block, gate_up=replace(block.gate_up, global_scale=scale))
    with pytest.raises(AssertionError):
        assert_close(changed.run(x, config), block.expected(x), config)


def test_a_token_has_the_same_bits_in_every_company(block: Block) -> None:
    x = values(5, HIDDEN, seed=8)
    together = block.run(x, CONFIG)
    assert torch.equal(block.run(x, BY_TOKEN), together)
    by_matrix = block.run(x, MATRIX)
    for t in (0, 3):
        assert torch.equal(block.run(x[t : t + 1], CONFIG)[0], together[t])
        assert torch.equal(block.run(x[t : t + 1], MATRIX)[0], by_matrix[t])


@pytest.mark.parametrize("config", [CONFIG, BY_TOKEN, MATRIX, MANY], ids=["by item", "by token", "matrix", "many"])
def test_a_sick_token_is_sick_alone(block: Block, config: MoeConfig) -> None:
    x = values(4, HIDDEN, seed=9)
    healthy = block.run(x, config)
    x[1] = float("nan")
    x[2, 3] = float("inf")
    out = block.run(x, config)
    assert not out[1:3].isfinite().any()
    assert torch.equal(out[[0, 3]], healthy[[0, 3]])


def test_inner_values_beyond_float16_pass(block: Block) -> None:
    """Experts of the real model reach 5 times float16's largest number."""
    scale = block.gate_up.global_scale / 4096
    large = replace(block, gate_up=replace(block.gate_up, global_scale=scale))
    x = values(2, HIDDEN, seed=10)
    expected = large.expected(x)
    assert expected.abs().max() > 65504
    for config in (CONFIG, MATRIX):
        assert_close(large.run(x, config), expected, config)
