from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationType
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from tools.demo.quantise import E2M1_VALUES, quantise, round_to_nvfp4, unpack


def matrices(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 32, 64, generator=generator) * torch.tensor([0.02, 1.0, 30.0])[:, None, None]
    weight[1, 0, :16] = 0.0  # a block of zeros
    weight[2, 1, :16] *= 1e-7  # a block that e4m3 cannot scale
    return weight


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rounding_is_that_of_compressed_tensors(seed: int) -> None:
    args = QuantizationArgs(
        num_bits=4,
        type=QuantizationType.FLOAT,
        group_size=16,
        strategy="tensor_group",
        scale_dtype=torch.float8_e4m3fn,
    )
    for weight in matrices(seed):
        global_scale = generate_gparam(weight.min(), weight.max())
        blocks = weight.unflatten(-1, (-1, 16))
        scale, zero_point = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, global_scale)
        codes = quantize(weight, scale, zero_point, args, global_scale=global_scale)
        ours = quantise(weight[None])
        assert torch.equal(ours.global_scale, global_scale)
        assert torch.equal(ours.scale[0].float(), scale.float())
        theirs = unpack_fp4_from_uint8(ours.packed()[0], *weight.shape, dtype=torch.float32)
        assert torch.equal(theirs, codes.float())


def test_dense_is_code_times_scale_over_global_scale() -> None:
    weight = matrices(3)
    matrix = quantise(weight)
    scale = matrix.scale.float().repeat_interleave(16, dim=-1)
    codes = torch.stack(
        [unpack_fp4_from_uint8(packed, 32, 64, dtype=torch.float32) for packed in matrix.packed()]
    )
    expected = codes.double() * scale.double() / matrix.global_scale.double()[:, None, None]
    torch.testing.assert_close(matrix.dense().double(), expected, rtol=1e-6, atol=0.0)


def test_each_matrix_has_its_own_global_scale() -> None:
    weight = matrices(4)
    for index in range(len(weight)):
        assert torch.equal(round_to_nvfp4(weight)[index], round_to_nvfp4(weight[index : index + 1])[0])


def test_packed_codes_come_back_with_the_even_column_low() -> None:
    matrix = quantise(matrices(5))
    assert torch.equal(unpack(matrix.packed()), matrix.codes)
    assert torch.equal(matrix.packed() & 15, matrix.codes[..., 0::2])


def test_values_of_the_format_are_kept() -> None:
    row = torch.tensor([*E2M1_VALUES, *[-value for value in E2M1_VALUES]])
    weight = row.repeat(4, 2)[None]
    assert torch.equal(round_to_nvfp4(weight), weight)
