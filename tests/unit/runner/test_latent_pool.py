"""The cache takes the bytes that its layout says, and its blocks travel whole."""

from __future__ import annotations

import pytest
import torch

from sparkstral.kernels import latent_pool, latent_write
from sparkstral.kv_cache.layout import KvLayout
from sparkstral.runner.block_copy import BlockCopier
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.types import Precision

CPU = torch.device("cpu")


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_pool_is_as_large_as_its_layout(kv: Precision, dtype: torch.dtype) -> None:
    pool = allocate_latent_pool(3, 5, 16, CPU, dtype, kv)
    layout = KvLayout.of(kv, 3, dtype.itemsize, 16)
    assert pool.nbytes == 5 * layout.bytes_per_block
    assert BlockCopier(pool).num_bytes == layout.bytes_per_block


def test_a_block_in_fp8_is_carried_to_another_place() -> None:
    pool = allocate_latent_pool(2, 4, 16, CPU, torch.float32, "fp8")
    generator = torch.Generator().manual_seed(0)
    for layer in pool:
        c_kv, k_rope = torch.randn(16, 256, generator=generator), torch.randn(16, 64, generator=generator)
        latent_write.latent_write(layer, torch.arange(16, 32), c_kv, k_rope)
    copier = BlockCopier(pool)
    copier.write(3, copier.read(1))
    for layer in pool:
        first, second = (latent_pool.read_blocks(layer, torch.tensor([block])) for block in (1, 3))
        assert torch.equal(first, second)
        assert float(first.abs().sum()) > 0
