"""Each rule is broken once on purpose: the check must see it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparkstral.kv_cache.invariants import InvariantError, check
from sparkstral.kv_cache.manager import BlockTable, KvCacheManager

TOKENS = list(range(10))


@pytest.fixture
def cache() -> KvCacheManager:
    """One running table of two full blocks and a part, and a kept prefix of three blocks."""
    cache = KvCacheManager(16, 4)
    kept = cache.new_table("kept")
    cache.admit(kept, list(range(12)), 0)
    cache.commit(kept, list(range(12)), 12)
    cache.release(kept)
    table = cache.new_table("")
    cache.admit(table, TOKENS, 0)
    cache.commit(table, TOKENS, 10)
    check(cache)
    return cache


def only_table(cache: KvCacheManager) -> BlockTable:
    (table,) = cache.tables
    return table


def leak(cache: KvCacheManager) -> None:
    cache.pool.take()


def forget_a_table(cache: KvCacheManager) -> None:
    cache.tables.clear()


def count_one_holder_more(cache: KvCacheManager) -> None:
    cache.pool.hold(only_table(cache).block_ids[0])


def free_a_held_block(cache: KvCacheManager) -> None:
    cache.pool.release(only_table(cache).block_ids[2], keep=False)


def hand_out_the_null_block(cache: KvCacheManager) -> None:
    only_table(cache).block_ids[2] = 0
    only_table(cache).changed()


def hold_a_block_twice(cache: KvCacheManager) -> None:
    table = only_table(cache)
    table.block_ids.append(table.block_ids[0])


def forget_a_kept_block(cache: KvCacheManager) -> None:
    cache.index.remove(cache.pool.kept_blocks()[0])


def lose_a_parent(cache: KvCacheManager) -> None:
    cache.index.remove(only_table(cache).block_ids[0])


def reuse_a_parent_first(cache: KvCacheManager) -> None:
    child = cache.pool.kept_blocks()[0]
    cache.pool.hold(child)
    cache.pool.release(child, keep=True)


def enter_a_block_that_is_not_full(cache: KvCacheManager) -> None:
    table = only_table(cache)
    cache.index.add(table.keys.key(2, [*TOKENS, 1, 2]), table.block_ids[2], table.block_ids[1])


def share_a_block_that_is_not_full(cache: KvCacheManager) -> None:
    table = cache.new_table("")
    cache.admit(table, [50], 0)
    cache.pool.release(table.block_ids[0], keep=False)
    table.block_ids[0] = only_table_of_three(cache).block_ids[2]
    cache.pool.hold(table.block_ids[0])
    table.changed()


def only_table_of_three(cache: KvCacheManager) -> BlockTable:
    return next(table for table in cache.tables if len(table.block_ids) == 3)


def keep_a_stale_tuple(cache: KvCacheManager) -> None:
    table = only_table(cache)
    table.as_tuple()
    table.block_ids.append(cache.pool.take())


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (leak, "holders"),
        (forget_a_table, "holders"),
        (count_one_holder_more, "holders"),
        (free_a_held_block, "holders"),
        (hand_out_the_null_block, "block 0 counts 0 holders and has 1"),
        (hold_a_block_twice, "twice"),
        (forget_a_kept_block, "a kept block can be hit"),
        (lose_a_parent, "without its parent"),
        (reuse_a_parent_first, "outlive"),
        (enter_a_block_that_is_not_full, "only full blocks are in the index"),
        (share_a_block_that_is_not_full, "only full blocks are shared"),
        (keep_a_stale_tuple, "up to date"),
    ],
)
def test_damage_is_seen(cache: KvCacheManager, damage: Callable[[KvCacheManager], None], rule: str) -> None:
    damage(cache)
    with pytest.raises(InvariantError, match=rule):
        check(cache)
