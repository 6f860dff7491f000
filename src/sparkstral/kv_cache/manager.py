"""The blocks of each request: taking, sharing, keeping and giving back.

Owns block tables and when a full block enters the prefix index; must not know why a request wants blocks
(scheduler/) or what they hold on the device (runner/).

Only full blocks are shared, and a full block is never written again, so nothing is ever copied. A full block
stands in the index once: who computes the same tokens after the same prefix is moved to the block that is
there already. So every holder of an indexed block holds its parent too, and since a table is given back from
its end, a child is always taken for reuse before its parent: no entry of the index ever lacks its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkstral.kv_cache.block_pool import BlockPool
from sparkstral.kv_cache.layout import capacity_tokens, num_blocks_for
from sparkstral.kv_cache.prefix_index import BlockKey, Digest, KeyChain, Parent, PrefixIndex, digest_256
from sparkstral.types import ImageInput


def _ignore(_: BlockTable) -> None: ...


class BlockTable:
    """The blocks of one request, in order. Made and changed by the manager only."""

    __slots__ = ("_block_ids_tuple", "block_ids", "keys", "num_full_blocks")

    def __init__(self, keys: KeyChain) -> None:
        self.keys = keys
        self.block_ids: list[int] = []
        self.num_full_blocks = 0  # leading blocks that are computed and were offered to the index
        self._block_ids_tuple: tuple[int, ...] | None = ()

    def as_tuple(self) -> tuple[int, ...]:
        """The same object until the table changes, which in decode is once in a block's length."""
        if self._block_ids_tuple is None:
            self._block_ids_tuple = tuple(self.block_ids)
        return self._block_ids_tuple

    def parent(self, index: int) -> Parent:
        return self.block_ids[index - 1] if index else self.keys.salt

    def changed(self) -> None:
        self._block_ids_tuple = None


class KvCacheManager:
    """All blocks of one pool. A table is empty until `admit` and again after `release` or `discard`."""

    def __init__(self, num_blocks: int, block_size_tokens: int, digest: Digest = digest_256) -> None:
        if block_size_tokens < 1:
            raise ValueError(f"a block holds at least 1 token, got {block_size_tokens}")
        self.block_size_tokens = block_size_tokens
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex()
        self.tables: set[BlockTable] = set()  # those that hold blocks
        self.num_releases = 0  # while this stands still, a table that did not fit does not fit
        self.on_release: Callable[[BlockTable], None] = _ignore  # a table that still holds its blocks
        self.on_discard: Callable[[BlockTable], None] = _ignore
        self._digest = digest

    @property
    def capacity_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""
        return capacity_tokens(self.pool.num_blocks, self.block_size_tokens)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be taken now, those with reusable content included."""
        return self.pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that a prefix can hit, those in use included."""
        return len(self.index)

    def new_table(self, cache_salt: str, images: Sequence[ImageInput] = ()) -> BlockTable:
        """An empty table whose prefixes are shared only with tables of equal salt, and equal images in equal places."""
        return BlockTable(KeyChain(cache_salt, self.block_size_tokens, self._digest, images))

    def admit(self, table: BlockTable, token_ids: Sequence[int], num_reserved_blocks: int) -> int | None:
        """Give an empty table blocks for all `token_ids`: those of the longest cached prefix, and fresh ones.

        At least the last token is left to compute, since a next token is sampled from its logits. Returns the
        number of tokens that need no computing; None, and nothing is changed, unless `num_reserved_blocks`
        stay free.
        """
        hits = self._longest_prefix(table, token_ids)
        num_kept_hits = sum(self.pool.num_holders(block_id) == 0 for block_id in hits)
        num_fresh = num_blocks_for(len(token_ids), self.block_size_tokens) - len(hits)
        if num_fresh + num_kept_hits + num_reserved_blocks > self.pool.num_free:
            return None
        for block_id in hits:
            self.pool.hold(block_id)
        table.block_ids = hits
        table.num_full_blocks = len(hits)
        self._append_fresh(table, num_fresh)
        self.tables.add(table)
        return table.num_full_blocks * self.block_size_tokens

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """See to it that the table covers `num_tokens`; False, and nothing is changed, if too few blocks are
        free."""
        num_missing = num_blocks_for(num_tokens, self.block_size_tokens) - len(table.block_ids)
        if num_missing <= 0:
            return True
        if num_missing > self.pool.num_free:
            return False
        self._append_fresh(table, num_missing)
        return True

    def skip_cached(self, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int) -> int:
        """Move an admitted table to blocks that others computed meanwhile; returns the new
        num_computed_tokens.

        So requests that arrive together with one long prefix compute it once. The last token is left to
        compute.
        """
        index = num_computed_tokens // self.block_size_tokens
        while (index + 1) * self.block_size_tokens < len(token_ids):
            shared = self.index.find(table.keys.key(index, token_ids), table.parent(index))
            if shared is None:
                break
            self._replace(table, index, shared)
            index += 1
            table.num_full_blocks = index
            num_computed_tokens = index * self.block_size_tokens
        return num_computed_tokens

    def commit(self, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Enter the blocks that are full now into the index; `token_ids` are computed up to
        `num_computed_tokens`."""
        for index in range(table.num_full_blocks, num_computed_tokens // self.block_size_tokens):
            key = table.keys.key(index, token_ids)
            parent = table.parent(index)
            shared = self.index.find(key, parent)
            if shared is None:
                self.index.add(key, table.block_ids[index], parent)
            else:
                self._replace(table, index, shared)
            table.num_full_blocks = index + 1

    def extend_by_cached(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        """Let a table of full blocks alone hold what the cache has of the prefix of `token_ids` behind them."""
        while (key := self.next_key(table, token_ids)) is not None:
            block_id = self.index.find(key, table.parent(len(table.block_ids)))
            if block_id is None:
                return
            self.pool.hold(block_id)
            self._append_full(table, block_id)

    def next_key(self, table: BlockTable, token_ids: Sequence[int]) -> BlockKey | None:
        """The key of the block behind those of the table; None where the last token would be in it, or none."""
        index = len(table.block_ids)
        if (index + 1) * self.block_size_tokens >= len(token_ids):
            return None
        return table.keys.key(index, token_ids)

    def append_restored(self, table: BlockTable, key: BlockKey) -> int:
        """A block for content that comes from elsewhere, entered into the index behind the table's others; it must be
        filled before anything is computed. Raises IndexError if no block is free."""
        block_id = self.pool.take()
        self.index.remove(block_id)
        self.index.add(key, block_id, table.parent(len(table.block_ids)))
        self._append_full(table, block_id)
        return block_id

    def release(self, table: BlockTable) -> None:
        """Give all blocks back, the last first. Full ones stay reusable until they are taken."""
        self.on_release(table)
        for block_id in reversed(table.block_ids):
            self.pool.release(block_id, keep=block_id in self.index)
        table.block_ids = []
        table.num_full_blocks = 0
        table.changed()
        self.tables.discard(table)
        self.num_releases += 1

    def forget_unused(self) -> int:
        """Empty the blocks that nobody holds; how many there were. No entry of the index lacks its parent then: who
        holds a block holds those before it."""
        block_ids = self.pool.kept_blocks()
        for block_id in block_ids:
            self.index.remove(block_id)
            self.pool.empty(block_id)
        return len(block_ids)

    def discard(self, table: BlockTable) -> None:
        """Give all blocks back and let nobody reuse them, nor what follows on them: their content is not
        trusted."""
        self.on_discard(table)
        for block_id in self.index.remove_with_descendants(table.block_ids):
            self.pool.empty(block_id)
        self.release(table)

    def _longest_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> list[int]:
        hits: list[int] = []
        parent: Parent = table.keys.salt
        for index in range((len(token_ids) - 1) // self.block_size_tokens):
            block_id = self.index.find(table.keys.key(index, token_ids), parent)
            if block_id is None:
                break
            hits.append(block_id)
            parent = block_id
        return hits

    def _append_full(self, table: BlockTable, block_id: int) -> None:
        table.block_ids.append(block_id)
        table.num_full_blocks += 1
        table.changed()
        self.tables.add(table)

    def _append_fresh(self, table: BlockTable, num_blocks: int) -> None:
        for _ in range(num_blocks):
            block_id = self.pool.take()
            self.index.remove(block_id)
            table.block_ids.append(block_id)
        table.changed()

    def _replace(self, table: BlockTable, index: int, shared: int) -> None:
        """Put an indexed block into the place of the table's own, which then holds nothing of worth."""
        own = table.block_ids[index]
        self.pool.hold(shared)
        table.block_ids[index] = shared
        self.pool.release(own, keep=own in self.index)
        table.changed()
