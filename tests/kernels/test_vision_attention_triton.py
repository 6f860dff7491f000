"""The Triton form of vision attention in the interpreter, against the reference, in float32."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import vision_attention
from sparkstral.kernels.vision_attention import triton_kernel
from sparkstral.kernels.vision_attention.triton_kernel import VisionAttentionConfig

CONFIG = VisionAttentionConfig(queries=16, keys=16, num_warps=4, num_stages=1)
GRIDS = [(4, 6), (2, 2), (6, 10), (2, 8)]  # 24, 4, 60 and 16 patches: tiles that are full, and that are not
NUM_HEADS = 3
CU_SEQLENS = [0, *accumulate(height * width for height, width in GRIDS)]
QKV = torch.randn(CU_SEQLENS[-1], 3, NUM_HEADS, 64, generator=torch.Generator().manual_seed(0))


def rotation(grids: list[tuple[int, int]]) -> Tensor:
    return vision_attention.axial_rotation(grids, 1e4, torch.device("cpu"))


def attend(qkv: Tensor, grids: list[tuple[int, int]]) -> Tensor:
    cu_seqlens = [0, *accumulate(height * width for height, width in grids)]
    tiles = triton_kernel.plan_tiles(cu_seqlens, CONFIG, torch.device("cpu"))
    return triton_kernel.vision_attention(qkv.clone(), rotation(grids), tiles, config=CONFIG)


def assert_attention(qkv: Tensor) -> None:
    expected = vision_attention.vision_attention(QKV, rotation(GRIDS), CU_SEQLENS)
    torch.testing.assert_close(attend(qkv, GRIDS), expected, rtol=0, atol=1e-5)


def test_images_of_several_sizes_attend_as_the_reference() -> None:
    assert_attention(QKV)


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("row", [0, 27, 87])
def test_a_number_that_is_off_is_noticed(part: int, row: int) -> None:
    off = QKV.clone()
    off[row, part, 1, 5] += 0.01 * float(QKV.abs().max())
    with pytest.raises(AssertionError):
        assert_attention(off)


def test_an_image_alone_equals_itself_in_a_batch_to_the_bit() -> None:
    together = attend(QKV, GRIDS)
    for grid, (begin, end) in zip(GRIDS, pairwise(CU_SEQLENS), strict=True):
        assert torch.equal(together[begin:end], attend(QKV[begin:end], [grid]))


def test_nan_in_an_image_stays_in_it() -> None:
    sick = QKV.clone()
    sick[26, 1] = float("nan")  # of the second image
    found = attend(sick, GRIDS).isnan().any(-1)
    assert found.tolist() == [24 <= row < 28 for row in range(len(QKV))]


def test_pairs_turn_by_row_then_by_column() -> None:
    angle = rotation([(3, 4)]).angle()
    frequencies = [10000 ** (-2 * k / 64) for k in range(32)]
    for patch in range(12):
        row, column = divmod(patch, 4)
        for pair in range(32):
            turn = row * frequencies[2 * pair] if pair < 16 else column * frequencies[2 * (pair - 16) + 1]
            assert float(angle[patch, pair]) == pytest.approx(turn, abs=1e-6)


def test_the_largest_image_starts_first() -> None:
    tiles = triton_kernel.plan_tiles(CU_SEQLENS, CONFIG, torch.device("cpu")).tolist()
    lengths = [end - begin for _, begin, end in tiles]
    assert lengths == sorted(lengths, reverse=True)
    assert len(tiles) == 2 + 1 + 4 + 1
