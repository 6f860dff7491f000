"""Quantised activations and the experts that multiply them, in the interpreter, against the reference.

The interpreter's `tl.dot_scaled` knows no E4M3 scales: here the kernels multiply the same operands in float32, and
what is not proven is that instruction alone. Its operands' order is: codes, scales and rows meet as they must.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkstral.checkpoint.load import load_planned
from sparkstral.checkpoint.plan import plan_load
from sparkstral.errors import CheckpointError, ConfigError
from sparkstral.kernels import moe_route, nvfp4_quantize
from sparkstral.kernels.moe_experts import triton_w4a4
from sparkstral.kernels.moe_experts.triton_kernel import MoeConfig, MoeWorkspace, moe_block
from sparkstral.kernels.moe_experts.triton_w4a4 import InputScales
from sparkstral.kernels.nvfp4_linear.packing import reorder
from sparkstral.kernels.nvfp4_quantize.pairs import QuantizeSpecs
from sparkstral.kernels.nvfp4_quantize.reference import MAGNITUDES
from sparkstral.kernels.select import check_w4a4
from sparkstral.model.fast_mistral4 import FastMistral4
from sparkstral.runner.fast_batch import StepShape, build_fast_batch
from sparkstral.runner.warm_up_steps import all_explained
from sparkstral.types import ScheduledRequest
from tests.kernels.nvfp4_weights import StoredWeight, draw
from tests.kernels.test_moe_triton import HIDDEN, INNER, MANY, NUM_EXPERTS, TOP_K, values
from tests.support.fast_model import LIMITS, small_configs, with_stacks
from tests.support.tiny_checkpoint import TINY, native_tensors, write_native

CPU = torch.device("cpu")
W4A4: MoeConfig = replace(MANY, w4a4=MANY.many)


def rows_of_all_kinds() -> Tensor:
    """Ordinary groups; zeros; far beyond the calibration, and far below; ties of E2M1; a NaN, an infinity."""
    x = values(1, 12, 16, seed=1)[0]
    x[1] = 0
    x[2] *= 1000
    x[3] *= 2.0**-30
    x[4] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2) * torch.tensor([1.0, -1.0] * 8)
    x[5, 3] = torch.nan
    x[6, 15] = -torch.inf
    return x.flatten()[None]


def quantized_on_device(x: Tensor, global_scale: float) -> tuple[Tensor, Tensor]:
    """One row of one expert."""
    size = x.shape[1]
    codes, scales = torch.zeros(1, size // 2, dtype=torch.uint8), torch.zeros(1, size // 16, dtype=torch.uint8)
    QuantizeSpecs(num_experts=1, slots=2, pdl=False).gathered(size).launch(
        (1,), x, torch.zeros(1, dtype=torch.int32), torch.tensor([0, 1, 1], dtype=torch.int32),
        torch.tensor([global_scale]), codes, scales, pdl=False,
    )  # fmt: skip
    return codes, scales.view(torch.float8_e4m3fn)


@pytest.mark.parametrize("global_scale", [6.0, 448.0, 1234.5])
def test_quantising_gives_the_references_bits(global_scale: float) -> None:
    """6 makes the scale of the tied group 1."""
    x = rows_of_all_kinds()
    codes, scales = quantized_on_device(x, global_scale)
    expected, expected_scales = nvfp4_quantize.quantize(x, torch.tensor([global_scale]))
    assert torch.equal(scales.view(torch.uint8) & 0x7F, expected_scales.view(torch.uint8) & 0x7F)
    healthy = scales.float().isfinite().repeat_interleave(8, dim=1)
    ours = nvfp4_quantize.from_word_order(codes)
    assert torch.equal(ours[healthy], expected[healthy])
    assert scales.float()[0, 5:7].isnan().all()


def test_what_is_quantised_is_the_nearest() -> None:
    x = values(1, 64 * 16, seed=2)
    global_scale = torch.tensor([2688.0 / float(x.abs().max())])
    packed, scale = nvfp4_quantize.quantize(x, global_scale)
    step = (scale.float() / global_scale).repeat_interleave(16, dim=1)
    grid = torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)])
    distance = (x[..., None] - grid * step[..., None]).abs().amin(-1)
    found = nvfp4_quantize.dequantize(packed, scale, global_scale)
    torch.testing.assert_close((x - found).abs(), distance, atol=1e-6, rtol=1e-5)


def test_reordered_weights_become_nibbles_in_word_order() -> None:
    packed = torch.randint(0, 256, (4, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    halves = reorder(packed).view(torch.int32)
    halves = torch.stack((halves & 0xFFFF, halves >> 16 & 0xFFFF), dim=-1).flatten(-2)
    nibbles = triton_w4a4._nibbles.fn(halves)
    ours = torch.stack((nibbles & 0xFF, nibbles >> 8), dim=-1).flatten(-2).to(torch.uint8)
    assert torch.equal(ours, nvfp4_quantize.to_word_order(packed))
    assert torch.equal(nvfp4_quantize.from_word_order(ours), packed)


@dataclass(frozen=True)
class Block:
    router: Tensor
    gate_up: StoredWeight
    down: StoredWeight
    scales: InputScales

    def run(self, x: Tensor, scales: InputScales | None = None) -> Tensor:
        workspace = MoeWorkspace.allocate(
            replace(W4A4, max_few=16), 64, HIDDEN, INNER, NUM_EXPERTS, TOP_K, x.device, torch.float32
        )
        out = torch.full_like(x, torch.nan)
        moe_block(
            x, self.router, self.gate_up.pack(), self.down.pack(), x * 0.5, 1.0, out, workspace=workspace, config=W4A4,
            pdl=False, input_scales=scales or self.scales,
        )  # fmt: skip
        return out

    def expected(self, x: Tensor) -> Tensor:
        """As the contracts say; the shared expert reads what was not quantised."""
        weights, ids = moe_route.moe_route(x @ self.router.T, TOP_K, 1.0)
        gate_up, down = self.gate_up.dense(), self.down.dense()

        def rounded(row: Tensor, scale: Tensor) -> Tensor:
            return nvfp4_quantize.dequantize(*nvfp4_quantize.quantize(row[None].float(), scale), scale)[0].double()

        rows = []
        for t in range(len(x)):
            row = 0.5 * x[t].double()
            for j in range(TOP_K + 1):
                expert, weight = (int(ids[t, j]), float(weights[t, j])) if j < TOP_K else (NUM_EXPERTS, 1.0)
                is_routed = expert < NUM_EXPERTS
                inner = rounded(x[t], self.scales.x[expert]) if is_routed else x[t].double()
                gate, up = (gate_up[expert] @ inner).chunk(2)
                h = torch.nn.functional.silu(gate) * up
                row += weight * (down[expert] @ (rounded(h, self.scales.h[expert]) if is_routed else h))
            rows.append(row)
        return torch.stack(rows)


@pytest.fixture(scope="module")
def block() -> Block:
    generator = torch.Generator().manual_seed(0)
    scales = InputScales(*(200 + 500 * torch.rand(2, NUM_EXPERTS + 1, generator=generator)))
    return Block(
        (values(NUM_EXPERTS, HIDDEN, seed=1) * 0.25).bfloat16().float(),
        draw(NUM_EXPERTS + 1, 2 * INNER, HIDDEN, parts=2, generator=generator),
        draw(NUM_EXPERTS + 1, HIDDEN, INNER, generator=generator),
        scales,
    )


def error(out: Tensor, expected: Tensor) -> float:
    return float(((out.double() - expected).abs().amax(1) / expected.abs().amax(1)).max())


@pytest.mark.parametrize("tokens", [1, 19])
def test_the_block_is_the_references(block: Block, tokens: int) -> None:
    """float32 sums may tip an inner value to the next code: one step of one of its terms."""
    x = values(tokens, HIDDEN, seed=tokens)
    assert error(block.run(x), block.expected(x)) < 5e-3


def test_an_input_scale_that_is_off_is_noticed(block: Block) -> None:
    x = values(19, HIDDEN, seed=19)
    for wrong in (replace(block.scales, x=block.scales.x * 1.2), replace(block.scales, h=block.scales.h.roll(1))):
        assert error(block.run(x, wrong), block.expected(x)) > 5e-3


def test_a_sick_token_is_sick_alone(block: Block) -> None:
    x = values(4, HIDDEN, seed=9)
    healthy = block.run(x)
    x[1] = torch.nan
    x[2, 3] = torch.inf
    out = block.run(x)
    assert not out[1:3].isfinite().any()
    assert torch.equal(out[[0, 3]], healthy[[0, 3]])


def test_a_prompt_goes_through_the_quantised_experts_and_a_decode_step_does_not(tmp_path: Path) -> None:
    """The same model, loaded with its input scales and without."""
    write_native(tmp_path)
    kernels = small_configs()
    kernels = replace(kernels, moe=replace(kernels.moe, max_few=4, w4a4=kernels.moe.many))
    shape = StepShape(16, LIMITS.max_num_seqs, kernels.prefill, LIMITS.prefill_keys)
    logits = []
    for with_input_scales in (False, True):
        config, weights = load_planned(plan_load(tmp_path, with_input_scales=with_input_scales))
        model = FastMistral4(config, with_stacks(weights), kernels, LIMITS, CPU, torch.float32)
        pool = torch.zeros(config.num_hidden_layers, 2, 16, 320)
        first = ScheduledRequest("a", tuple(range(40, 52)), 0, (1,), True)
        none = torch.zeros(1, dtype=torch.int64)
        prompt = model.forward(build_fast_batch((first,), shape, CPU, {}, none, all_explained((first,)))[0], pool)
        pool.copy_(torch.randn(pool.shape, generator=torch.Generator().manual_seed(1)))
        then = ScheduledRequest("a", (7,), 12, (1,), True)
        logits.append((prompt, model.forward(build_fast_batch((then,), shape, CPU, {}, none)[0], pool)))
    (exact, step), (quantised, same_step) = logits
    assert torch.equal(step, same_step)
    assert 1e-3 < float((exact - quantised).norm() / exact.norm()) < 0.2


def test_an_input_scale_that_is_missing_is_said_before_loading(tmp_path: Path) -> None:
    tensors = native_tensors(TINY)
    del tensors["layers.0.experts.1.w2.input_global_scale"]
    write_native(tmp_path, tensors=tensors)
    plan_load(tmp_path)
    with pytest.raises(CheckpointError, match=r"1 matrices have no input_global_scale.*Leave --prefill w4a4 out"):
        plan_load(tmp_path, with_input_scales=True)


def test_where_w4a4_is_not_served_is_said() -> None:
    check_w4a4((12, 1))
    with pytest.raises(ConfigError, match=r"12\.x, a GB10\); this GPU has capability 9\.0"):
        check_w4a4((9, 0))
    with pytest.raises(ConfigError, match="the reference is served here"):
        check_w4a4(None)
