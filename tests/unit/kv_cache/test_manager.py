from __future__ import annotations

import pytest

from sparkstral.kv_cache.invariants import check
from sparkstral.kv_cache.manager import BlockTable, KvCacheManager

BLOCK_SIZE = 4


def manager(num_blocks: int = 16) -> KvCacheManager:
    return KvCacheManager(num_blocks, BLOCK_SIZE)


def computed(cache: KvCacheManager, tokens: list[int], salt: str = "") -> BlockTable:
    """A table whose tokens are all computed."""
    table = cache.new_table(salt)
    assert cache.admit(table, tokens, 0) is not None
    cache.commit(table, tokens, len(tokens))
    check(cache)
    return table


def admitted(cache: KvCacheManager, tokens: list[int], salt: str = "") -> tuple[BlockTable, int]:
    table = cache.new_table(salt)
    num_cached_tokens = cache.admit(table, tokens, 0)
    assert num_cached_tokens is not None
    check(cache)
    return table, num_cached_tokens


def test_the_longest_cached_prefix_is_shared() -> None:
    cache = manager()
    tokens = list(range(10))
    first = computed(cache, tokens)
    second, num_cached_tokens = admitted(cache, [*tokens[:8], 77, 78, 79])
    assert num_cached_tokens == 8
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] != first.block_ids[2]


def test_a_prefix_outlives_its_request() -> None:
    cache = manager()
    tokens = list(range(12))
    cache.release(computed(cache, tokens))
    assert cache.num_free_blocks == 15
    assert admitted(cache, [*tokens, 99])[1] == 12


def test_the_last_token_is_always_left_to_compute() -> None:
    cache = manager()
    tokens = list(range(8))
    computed(cache, tokens)
    assert admitted(cache, tokens)[1] == 4
    assert admitted(cache, [*tokens, 99])[1] == 8


def test_nothing_is_shared_over_different_salts() -> None:
    cache = manager()
    tokens = list(range(10))
    computed(cache, tokens, salt="alice")
    assert admitted(cache, tokens, salt="bob")[1] == 0
    assert admitted(cache, tokens, salt="alice")[1] == 8


def test_colliding_digests_never_mix_two_prompts() -> None:
    cache = KvCacheManager(16, BLOCK_SIZE, digest=lambda _: b"always the same")
    tokens = list(range(10))
    first = computed(cache, tokens)
    other = computed(cache, tokens[::-1])
    assert not set(first.block_ids) & set(other.block_ids)
    assert admitted(cache, tokens)[1] == 4, "only the first block found a free digest"
    assert admitted(cache, tokens, salt="other")[1] == 0


def test_tokens_that_are_not_computed_are_not_shared() -> None:
    cache = manager()
    tokens = list(range(12))
    table, _ = admitted(cache, tokens)
    cache.commit(table, tokens, 7)
    assert admitted(cache, tokens)[1] == 4


def test_generated_tokens_are_shared_with_the_next_turn() -> None:
    cache = manager()
    tokens = list(range(6))
    table = computed(cache, tokens)
    tokens += [30, 31, 32]
    assert cache.grow(table, len(tokens))
    cache.commit(table, tokens, 8)
    cache.release(table)
    assert admitted(cache, [*tokens, 40, 41])[1] == 8


def test_who_computes_what_is_there_already_moves_to_it() -> None:
    cache = manager()
    tokens = list(range(10))
    first, _ = admitted(cache, tokens)
    second, _ = admitted(cache, tokens)
    num_free_blocks = cache.num_free_blocks
    cache.commit(first, tokens, 10)
    cache.commit(second, tokens, 10)
    check(cache)
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.as_tuple() == tuple(second.block_ids)
    assert cache.num_free_blocks == num_free_blocks + 2


def test_who_is_behind_skips_what_others_computed_meanwhile() -> None:
    cache = manager()
    tokens = list(range(13))
    first, _ = admitted(cache, tokens)
    second, _ = admitted(cache, tokens)
    cache.commit(first, tokens, 13)
    assert cache.skip_cached(second, tokens, 2) == 12
    check(cache)
    assert second.block_ids[:3] == first.block_ids[:3]
    third, _ = admitted(cache, tokens[:12])
    assert cache.skip_cached(third, tokens[:12], 8) == 8, "the last token is left to compute"


def test_admission_that_does_not_fit_changes_nothing() -> None:
    cache = manager(num_blocks=6)
    tokens = list(range(8))
    cache.release(computed(cache, tokens))
    table = cache.new_table("")
    assert cache.admit(table, [*tokens, *range(50, 63)], 0) is None
    assert table.block_ids == []
    check(cache)
    assert cache.admit(table, [*tokens, 50], 3) is None, "three blocks are to stay free"
    assert cache.admit(table, [*tokens, 50], 2) == 8


def test_growth_that_does_not_fit_changes_nothing() -> None:
    cache = manager(num_blocks=3)
    table, _ = admitted(cache, [1, 2, 3])
    assert not cache.grow(table, 9)
    assert len(table.block_ids) == 1
    assert cache.grow(table, 8)
    check(cache)


def test_the_tuple_of_a_table_stays_the_same_object_until_it_changes() -> None:
    cache = manager()
    table, _ = admitted(cache, [1, 2, 3])
    before = table.as_tuple()
    cache.grow(table, 4)
    assert table.as_tuple() is before
    cache.grow(table, 5)
    assert table.as_tuple() == (*before, table.block_ids[1])


def test_the_end_of_a_prefix_is_reused_before_its_beginning() -> None:
    cache = manager(num_blocks=6)
    tokens = list(range(16))
    cache.release(computed(cache, tokens))
    passing, _ = admitted(
        cache, [90, 91, 92, 93, 94]
    )  # takes the one empty block and the fourth of the prefix
    cache.release(passing)
    assert admitted(cache, [*tokens, 99])[1] == 12


def test_what_is_discarded_is_not_reused_nor_what_follows_on_it() -> None:
    cache = manager()
    tokens = list(range(12))
    sick = computed(cache, tokens[:8])
    longer = computed(cache, tokens)
    cache.discard(sick)
    check(cache)
    assert cache.num_cached_blocks == 0
    assert admitted(cache, tokens)[1] == 0
    cache.commit(longer, [*tokens, 20, 21, 22, 23], 12)
    cache.release(longer)
    check(cache)


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        KvCacheManager(4, 0)
