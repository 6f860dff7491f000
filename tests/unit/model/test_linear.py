from __future__ import annotations

import pytest
import torch

from sparkstral.model.linear import column_major, to_dense
from sparkstral.model.weights import DenseWeight, Fp8Weight, Nvfp4Weight
from tests.kernels.compressed import decompress

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dense_changes_its_dtype_alone(dtype: torch.dtype) -> None:
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(to_dense(DenseWeight(weight), CPU, dtype), weight.to(dtype))


def test_fp8_is_multiplied_by_the_scale_of_its_matrix() -> None:
    weight = torch.tensor([[[1.0, -2.0]], [[0.5, 448.0]]]).to(torch.float8_e4m3fn)
    dense = to_dense(Fp8Weight(weight, torch.tensor([3.0, 0.25])), CPU, torch.float32)
    assert dense.tolist() == [[[3.0, -6.0]], [[0.125, 112.0]]]
    single = to_dense(Fp8Weight(weight[0], torch.tensor(3.0)), CPU, torch.float32)
    assert single.tolist() == [[3.0, -6.0]]


def test_nvfp4_is_what_compressed_tensors_makes_of_it() -> None:
    packed = torch.arange(16, dtype=torch.uint8).view(2, 8)
    scale = torch.tensor([[0.75], [4.0]]).to(torch.float8_e4m3fn)
    dense = to_dense(Nvfp4Weight(packed, scale, torch.tensor(7.0)), CPU, torch.bfloat16)
    assert torch.equal(dense, decompress(packed, scale, torch.tensor(7.0)))


def test_column_major_keeps_the_values_and_turns_the_memory() -> None:
    weight = torch.arange(24.0).view(2, 3, 4)
    turned = column_major(weight)
    assert torch.equal(turned, weight)
    assert turned.stride() == (12, 1, 3)
