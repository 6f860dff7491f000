from __future__ import annotations

import pytest
import torch

from sparkstral.kernels import nvfp4_linear
from sparkstral.kernels.nvfp4_linear import packing
from tests.kernels.nvfp4_weights import draw


def test_every_byte_at_every_place_comes_back() -> None:
    packed = torch.stack([torch.arange(256, dtype=torch.uint8).roll(shift) for shift in range(8)])
    codes = packing.reorder(packed)
    assert codes.dtype == torch.int64
    assert codes.shape == (8, 32)
    assert torch.equal(packing.restore(codes), packed)


def test_a_code_in_place_is_a_float16_of_its_value() -> None:
    """Each of the 16 codes of a word, brought to its place by a shift and a mask, is code · 2^-14."""
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (5, 8), dtype=torch.uint8, generator=generator)
    ones = torch.ones(5, 1).to(torch.float8_e4m3fn)
    values = nvfp4_linear.dequantize(packed, ones, torch.tensor(1.0), torch.float32)
    words = packing.reorder(packed).view(torch.int32).long() & 0xFFFFFFFF
    for k in range(16):
        half = (words[:, k // 8] >> (16 * (k % 2))) & 0xFFFF
        pair = k % 8 // 2
        magnitude = (half << (3 * pair)) & 0x0E00
        sign = (half << (15 - packing.SIGN_BITS[pair])) & 0x8000
        bits = (magnitude | sign).to(torch.int32)
        found = torch.where(bits >= 1 << 15, bits - (1 << 16), bits).to(torch.int16).view(torch.float16)
        assert torch.equal(found.float() * 2.0**14, values[:, k])


def test_a_weight_keeps_its_bytes() -> None:
    stored = draw(3, 8, 64, parts=2, generator=torch.Generator().manual_seed(1))
    weight = stored.pack()
    assert weight.codes.shape == (3, 8, 4)
    assert weight.codes.nbytes == stored.packed.nbytes
    assert weight.scale is stored.scale
    torch.testing.assert_close(weight.factor * stored.global_scale, torch.ones(3, 2))


def test_half_a_pair_of_groups_is_refused() -> None:
    stored = draw(8, 48, generator=torch.Generator().manual_seed(2))
    with pytest.raises(ValueError, match="48 columns"):
        stored.pack()
