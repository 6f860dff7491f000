"""What must hold for the cache's books after every action; used by tests and by the soak run.

Owns the statement of the rules; changes nothing. Reads the whole pool: not for the step loop.
"""

from __future__ import annotations

from collections import Counter

from sparkstral.kv_cache.layout import NULL_BLOCK
from sparkstral.kv_cache.manager import KvCacheManager


class InvariantError(AssertionError):
    """The books are wrong: a defect of ours, never a user's doing."""


def check(manager: KvCacheManager) -> None:
    """Raise InvariantError naming the first broken rule."""
    pool, index = manager.pool, manager.index
    held = Counter(block_id for table in manager.tables for block_id in table.block_ids)
    empty, kept = pool.empty_blocks(), pool.kept_blocks()

    for table in manager.tables:
        _require(bool(table.block_ids), "a listed table holds blocks")
        _require(len(set(table.block_ids)) == len(table.block_ids), "a table holds no block twice")
        _require(table.as_tuple() == tuple(table.block_ids), "a table's tuple is up to date")
        _require(table.num_full_blocks <= len(table.block_ids), "full blocks are the table's own")
    for block_id in range(pool.num_blocks):
        _require(
            pool.num_holders(block_id) == held[block_id],
            f"block {block_id} counts {pool.num_holders(block_id)} holders and has {held[block_id]}",
        )
    _require(
        sorted([*held, *empty, *kept]) == [b for b in range(pool.num_blocks) if b != NULL_BLOCK],
        "every block but the null block is held, kept or empty, and only one of these",
    )
    _require(all(block_id in index for block_id in kept), "a kept block can be hit")
    _require(not any(block_id in index for block_id in empty), "an empty block cannot be hit")

    eviction_order = {block_id: position for position, block_id in enumerate(kept)}
    parents = {}
    for entry in index.entries():
        parents[entry.block_id] = entry.parent
        _require(index.find(entry.key, entry.parent) == entry.block_id, "an entry is found by its own key")
        if isinstance(entry.parent, str):
            continue
        _require(entry.parent in index, f"block {entry.block_id} is in the index without its parent")
        _require(
            pool.num_holders(entry.parent) >= pool.num_holders(entry.block_id),
            f"block {entry.block_id} has more holders than its parent",
        )
        if entry.parent in eviction_order:
            _require(
                eviction_order[entry.block_id] < eviction_order[entry.parent],
                f"block {entry.block_id} would outlive its parent",
            )

    for table in manager.tables:
        for position, block_id in enumerate(table.block_ids):
            if position >= table.num_full_blocks:
                _require(block_id not in index, "only full blocks are in the index")
                _require(pool.num_holders(block_id) == 1, "only full blocks are shared")
            elif block_id in index:
                _require(
                    parents[block_id] == table.parent(position), "an indexed block stands after its parent"
                )


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(rule)
