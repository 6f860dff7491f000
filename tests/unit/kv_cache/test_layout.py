from __future__ import annotations

from sparkstral.kv_cache.layout import KvLayout, capacity_tokens, num_blocks_for

REAL = KvLayout(num_layers=36, latent_width=320, dtype_bytes=2, block_size_tokens=64)


def test_a_token_of_the_real_model_takes_23040_bytes() -> None:
    assert REAL.bytes_per_token == 23_040
    assert REAL.bytes_per_block == 23_040 * 64


def test_a_layout_is_of_the_models_dtype_or_of_fp8() -> None:
    assert KvLayout.of("bf16", 36, 2, 64) == REAL
    assert KvLayout.of("bf16", 36, 4, 64).bytes_per_token == 46_080
    for dtype_bytes in (2, 4):
        fp8 = KvLayout.of("fp8", 36, dtype_bytes, 64)
        assert fp8.bytes_per_token == 36 * (256 + 2 * 64 + 2) == 13_896
        assert fp8.bytes_per_block == 13_896 * 64


def test_blocks_are_counted_upwards() -> None:
    assert [num_blocks_for(n, 64) for n in (0, 1, 64, 65, 262_144)] == [0, 1, 1, 2, 4096]


def test_a_pool_for_one_request_has_the_null_block_beside_its_own() -> None:
    assert REAL.pool_blocks_for(65) == 3
    assert capacity_tokens(REAL.pool_blocks_for(262_144), 64) == 262_144
