from __future__ import annotations

import pytest

from sparkstral.kv_cache.block_pool import BlockPool
from sparkstral.kv_cache.layout import NULL_BLOCK


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(4)
    assert sorted(pool.take() for _ in range(pool.num_free)) == [1, 2, 3]
    with pytest.raises(IndexError):
        pool.take()


def test_a_pool_of_the_null_block_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(NULL_BLOCK + 1)


def test_empty_blocks_are_taken_before_kept_ones() -> None:
    pool = BlockPool(4)
    first, second = pool.take(), pool.take()
    pool.release(first, keep=True)
    pool.release(second, keep=False)
    assert [pool.take(), pool.take(), pool.take()] == [second, 3, first]


def test_the_longest_unused_kept_block_is_taken_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.take() for _ in range(3)]
    for block_id in blocks:
        pool.release(block_id, keep=True)
    pool.hold(blocks[0])  # used again
    pool.release(blocks[0], keep=True)
    assert [pool.take() for _ in range(3)] == [blocks[1], blocks[2], blocks[0]]


def test_a_shared_block_is_free_after_its_last_holder() -> None:
    pool = BlockPool(2)
    block_id = pool.take()
    pool.hold(block_id)
    pool.release(block_id, keep=True)
    assert pool.num_free == 0
    pool.release(block_id, keep=True)
    assert pool.num_free == 1
    assert pool.num_holders(block_id) == 0
