"""What stands around the products, in the interpreter: norms, the write to the cache, rotation of queries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkstral.kernels import latent_write, rms_norm, rope
from sparkstral.kernels.latent_write import triton_kernel as latent_write_triton
from sparkstral.kernels.latent_write.triton_kernel import LatentWriteConfig
from sparkstral.kernels.rms_norm import triton_kernel as rms_norm_triton
from sparkstral.kernels.rms_norm.triton_kernel import RmsNormConfig
from sparkstral.kernels.rope import triton_kernel as rope_triton
from sparkstral.kernels.rope.triton_kernel import RopeConfig

EPS = 1e-6
QUERY, LATENT, ROPE, BLOCK_SIZE = 48, 256, 64, 8  # 48: no power of 2


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def add_rms_norm(stream: Tensor, parts: Tensor | None, weight: Tensor, rows: Tensor | None = None) -> Tensor:
    return rms_norm_triton.add_rms_norm(stream, parts, weight, EPS, config=RmsNormConfig(4), pdl=False, rows=rows)


@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize("num_parts", [0, 1, 3])
def test_the_parts_join_the_stream_which_is_then_normalised(width: int, num_parts: int) -> None:
    stream, weight = randn(5, width), 1 + 0.2 * randn(width, seed=1)
    parts = randn(num_parts, 5, width, seed=2) if num_parts else None
    joined = stream if parts is None else stream + parts.sum(0)
    normed = add_rms_norm(stream, parts, weight)
    torch.testing.assert_close(stream, joined, rtol=0, atol=1e-6)
    torch.testing.assert_close(normed, rms_norm.rms_norm(joined, weight, EPS), rtol=1e-5, atol=1e-6)


def test_chosen_rows_are_normalised_and_the_stream_stays() -> None:
    stream, parts, weight = randn(6, 64), randn(2, 6, 64, seed=1), randn(64, seed=2)
    before, rows = stream.clone(), torch.tensor([5, 0, 3])
    normed = add_rms_norm(stream, parts, weight, rows)
    assert torch.equal(stream, before)
    expected = rms_norm.rms_norm((stream + parts.sum(0))[rows], weight, EPS)
    torch.testing.assert_close(normed, expected, rtol=1e-5, atol=1e-6)


def test_a_part_that_is_one_percent_off_is_noticed() -> None:
    parts, weight = randn(2, 3, 64, seed=1), randn(64, seed=2)
    normed = add_rms_norm(torch.zeros(3, 64), parts, weight)
    parts[1, 2, 11] *= 1.01
    with pytest.raises(AssertionError):
        torch.testing.assert_close(add_rms_norm(torch.zeros(3, 64), parts, weight), normed, rtol=1e-5, atol=1e-6)


def test_bfloat16_norms_are_within_a_unit_in_the_last_place() -> None:
    # Twice: the interpreter cuts bfloat16 off instead of rounding, before the weight and after it.
    stream, weight = randn(4, 256).bfloat16(), (1 + 0.2 * randn(256, seed=1)).bfloat16()
    expected = rms_norm.rms_norm(stream, weight, EPS).float()
    torch.testing.assert_close(add_rms_norm(stream, None, weight).float(), expected, rtol=2**-6, atol=0)


def test_a_wide_stream_is_normalised_into_the_weights_dtype() -> None:
    stream, weight = randn(4, 64), torch.ones(64).bfloat16()
    normed = add_rms_norm(stream, None, weight)
    assert normed.dtype == torch.bfloat16
    torch.testing.assert_close(normed.float(), rms_norm.rms_norm(stream, weight.float(), EPS), rtol=2**-7, atol=0)


def cache_operands(num_parts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parts of 5 tokens, both norms, their rotation."""
    rotation = rope.rotation(torch.tensor([0, 3, 70, 4000, 9]), torch.linspace(1, 1e-4, ROPE // 2))
    parts = randn(num_parts, 5, QUERY + LATENT + ROPE)
    return parts, 1 + 0.2 * randn(QUERY, seed=1), 1 + 0.2 * randn(LATENT, seed=2), rotation


def write(pool: Tensor, slots: Tensor, parts: Tensor, q_norm: Tensor, kv_norm: Tensor, rotation: Tensor) -> Tensor:
    return latent_write_triton.write_latents(
        parts, q_norm, kv_norm, rotation, slots, EPS, pool, config=LatentWriteConfig(4), pdl=False
    )


@pytest.mark.parametrize("num_parts", [1, 3])
def test_write_latents_is_norm_rotation_and_write(num_parts: int) -> None:
    parts, q_norm, kv_norm, rotation = cache_operands(num_parts)
    pool, expected = torch.full((2, 4, BLOCK_SIZE, LATENT + ROPE), 7.0)
    slots = torch.tensor([9, 31, -1, 0, 16])
    q = write(pool, slots, parts, q_norm, kv_norm, rotation)
    q_a, c_kv, k_rope = parts.sum(0).split([QUERY, LATENT, ROPE], dim=-1)
    written = slots >= 0  # a row that pads the batch writes nothing
    latent_write.latent_write(
        expected,
        slots[written],
        rms_norm.rms_norm(c_kv, kv_norm, EPS)[written],
        rope.rope(k_rope, rotation)[written],
    )
    torch.testing.assert_close(pool, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q, rms_norm.rms_norm(q_a, q_norm, EPS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lane", [QUERY, QUERY + LATENT, QUERY + LATENT + ROPE - 1])
def test_a_latent_that_is_one_percent_off_is_noticed(lane: int) -> None:
    parts, *others = cache_operands(2)
    slots = torch.tensor([9, 31, 1, 0, 16])
    right, wrong = torch.zeros(2, 4, BLOCK_SIZE, LATENT + ROPE)
    write(right, slots, parts, *others)
    parts[1, 3, lane] *= 1.01
    write(wrong, slots, parts, *others)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(wrong, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_heads", [1, 3, 4])
def test_queries_are_rotated_and_scaled_in_place(num_heads: int) -> None:
    q = randn(5, num_heads, 2 * ROPE)
    rotation = cache_operands(1)[-1]
    query_scale = 1 + 0.1 * torch.rand(5, generator=torch.Generator().manual_seed(0))
    turned = torch.cat((q[..., :ROPE], rope.rope(q[..., ROPE:], rotation)), dim=-1) * query_scale[:, None, None]
    rope_triton.turn_queries(q, rotation, query_scale, config=RopeConfig(4), pdl=False)
    torch.testing.assert_close(q, turned, rtol=1e-5, atol=1e-6)
