from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sparkstral.kernels import nvfp4_linear
from tests.kernels.compressed import decompress, decompress_float32

# Every finite float8_e4m3 value (0x7F and 0xFF are NaN), one a row; in each row every pair of codes.
SCALES = torch.tensor([b for b in range(256) if b & 0x7F != 0x7F], dtype=torch.uint8).view(
    torch.float8_e4m3fn
)
PACKED = torch.arange(256, dtype=torch.uint8).expand(len(SCALES), -1).contiguous()
GLOBAL_SCALES = torch.cat(
    (torch.tensor([1.0, 448 * 6 / 0.37]), torch.rand(10, generator=torch.Generator().manual_seed(0)) * 1e5)
)


@pytest.mark.parametrize("global_scale", GLOBAL_SCALES)
def test_dequantize_equals_compressed_tensors_bit_for_bit(global_scale: torch.Tensor) -> None:
    scale = SCALES[:, None].expand(-1, 32).contiguous()
    ours = nvfp4_linear.dequantize(PACKED, scale, global_scale, torch.bfloat16)
    theirs = decompress(PACKED, scale, global_scale)
    assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
    ours = nvfp4_linear.dequantize(PACKED, scale, global_scale, torch.float32)
    theirs = decompress_float32(PACKED, scale, global_scale)
    assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))


def test_dequantize_serves_each_group_with_its_own_scale() -> None:
    generator = torch.Generator().manual_seed(1)
    scale = torch.randint(0, 0x7F, (24, 6), dtype=torch.uint8, generator=generator).view(torch.float8_e4m3fn)
    packed = torch.randint(0, 256, (24, 48), dtype=torch.uint8, generator=generator)
    ours = nvfp4_linear.dequantize(packed, scale, torch.tensor(300.0), torch.float32)
    assert torch.equal(ours, decompress_float32(packed, scale, torch.tensor(300.0)))


def test_a_stack_of_experts_is_decoded_as_each_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    scale = torch.randint(0, 0x7F, (3, 8, 2), dtype=torch.uint8, generator=generator).view(
        torch.float8_e4m3fn
    )
    packed = torch.randint(0, 256, (3, 8, 16), dtype=torch.uint8, generator=generator)
    global_scale = torch.tensor([1.0, 77.0, 5000.0])
    stack = nvfp4_linear.dequantize(packed, scale, global_scale, torch.float32)
    for expert in range(3):
        alone = decompress_float32(packed[expert], scale[expert], global_scale[expert])
        assert torch.equal(stack[expert], alone)


def test_linear_multiplies_by_the_decoded_weight() -> None:
    scale = torch.full((4, 16), 1.5).to(torch.float8_e4m3fn)
    packed = PACKED[:4, :128]
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(3))
    expected = F.linear(x, decompress_float32(packed, scale, torch.tensor(20.0)))
    torch.testing.assert_close(nvfp4_linear.nvfp4_linear(x, packed, scale, torch.tensor(20.0)), expected)
