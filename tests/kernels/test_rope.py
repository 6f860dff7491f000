"""The expected numbers are those of docs/model.md, computed there in double precision."""

from __future__ import annotations

import cmath

import pytest
import torch

from sparkstral.kernels import rope

INV_FREQ = [
    1.00000000e+00, 7.49894209e-01, 5.62341325e-01, 4.21696503e-01,
    3.16227766e-01, 2.37137371e-01, 1.77827941e-01, 1.33352143e-01,
    1.00000000e-01, 7.49894209e-02, 5.62341325e-02, 4.21696503e-02,
    3.16227766e-02, 2.19038545e-02, 1.50683532e-02, 1.02818990e-02,
    6.94711538e-03, 4.63726647e-03, 3.04826848e-03, 1.96403119e-03,
    1.23146390e-03, 7.42479387e-04, 4.21058947e-04, 2.13972489e-04,
    8.41346154e-05, 5.85854851e-06, 4.39329160e-06, 3.29450393e-06,
    2.47052942e-06, 1.85263571e-06, 1.38928079e-06, 1.04181362e-06,
]  # fmt: skip


def real_model_inv_freq() -> torch.Tensor:
    return rope.yarn_inv_freq(
        dim=64, theta=1e4, factor=128, beta_fast=32, beta_slow=1, original_max_position_embeddings=8192
    )


def test_yarn_frequencies_are_the_models() -> None:
    expected = torch.tensor(INV_FREQ, dtype=torch.float64)
    # Half a float32 unit in the last place, and the nine digits of the table.
    torch.testing.assert_close(real_model_inv_freq().double(), expected, rtol=6e-8 + 5e-9, atol=0)


@pytest.mark.parametrize(
    ("position", "factor"),
    [
        (0, 1.0),
        (8191, 1.0),
        (8192, 1.069315),
        (16384, 1.109861),
        (65536, 1.219722),
        (131072, 1.283321),
        (262143, 1.346574),
        (1048575, 1.485203),
    ],
)
def test_llama_4_factor_is_the_models(position: int, factor: float) -> None:
    assert float(rope.llama_4_scale(torch.tensor([position]), 0.1, 8192)[0]) == pytest.approx(
        factor, abs=6e-7
    )


def test_pairs_of_neighbours_turn_by_their_frequency_and_stay_where_they_are() -> None:
    inv_freq = real_model_inv_freq()
    positions = torch.tensor([0, 3, 70])
    x = torch.randn(3, 2, 64, generator=torch.Generator().manual_seed(0))
    turned = rope.rope(x, rope.rotation(positions, inv_freq))
    for t, position in enumerate(positions.tolist()):
        for pair, frequency in enumerate(INV_FREQ):
            for head in range(2):
                before = complex(float(x[t, head, 2 * pair]), float(x[t, head, 2 * pair + 1]))
                after = complex(float(turned[t, head, 2 * pair]), float(turned[t, head, 2 * pair + 1]))
                assert abs(after - before * cmath.exp(1j * position * frequency)) < 2e-5


def test_a_strided_view_turns_like_its_copy() -> None:
    wide = torch.randn(5, 4, 128, generator=torch.Generator().manual_seed(0))
    rotation = rope.rotation(torch.arange(5), real_model_inv_freq())
    view = wide[:, :, 64:]
    assert torch.equal(rope.rope(view, rotation), rope.rope(view.contiguous(), rotation))


def test_bfloat16_is_rounded_once() -> None:
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    rotation = rope.rotation(torch.arange(5), real_model_inv_freq())
    assert torch.equal(rope.rope(x, rotation), rope.rope(x.float(), rotation).bfloat16())
