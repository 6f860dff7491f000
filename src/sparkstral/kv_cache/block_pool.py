"""Which blocks are held, by how many, and which is taken next.

Owns reference counts and the order of reuse; must not know what a block holds: the manager says on release
whether its content is worth keeping. Empty blocks are taken first, then kept ones, the longest unused first.
"""

from __future__ import annotations

from collections import OrderedDict

from sparkstral.kv_cache.layout import NULL_BLOCK


class BlockPool:
    """`num_blocks` blocks, of which block 0 (`NULL_BLOCK`) is never given out.

    A block is held (reference count above 0), kept (count 0, content reusable until it is taken) or empty.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(
                f"a pool needs at least 2 blocks (block {NULL_BLOCK} is reserved), got {num_blocks}"
            )
        self.num_blocks = num_blocks
        self._num_holders = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, NULL_BLOCK, -1))  # a stack: low ids first
        self._kept: OrderedDict[int, None] = OrderedDict()  # longest unused first

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now, kept ones included."""
        return len(self._empty) + len(self._kept)

    def num_holders(self, block_id: int) -> int:
        return self._num_holders[block_id]

    def take(self) -> int:
        """An unheld block, now held once. If it was kept, its content is gone: the caller must forget it.

        Raises IndexError if no block is free; callers look at `num_free` first.
        """
        if self._empty:
            block_id = self._empty.pop()
        elif self._kept:
            block_id, _ = self._kept.popitem(last=False)
        else:
            raise IndexError("no free block")
        self._num_holders[block_id] = 1
        return block_id

    def hold(self, block_id: int) -> None:
        """One holder more for a block that is held or kept."""
        if self._num_holders[block_id] == 0:
            del self._kept[block_id]
        self._num_holders[block_id] += 1

    def release(self, block_id: int, keep: bool) -> None:
        """One holder fewer; the last one leaves the block kept or empty."""
        self._num_holders[block_id] -= 1
        if self._num_holders[block_id] == 0:
            if keep:
                self._kept[block_id] = None
            else:
                self._empty.append(block_id)

    def empty(self, block_id: int) -> None:
        """A kept block's content is worth nothing any more; a held block is left alone."""
        if block_id in self._kept:
            del self._kept[block_id]
            self._empty.append(block_id)

    def empty_blocks(self) -> tuple[int, ...]:
        return tuple(self._empty)

    def kept_blocks(self) -> tuple[int, ...]:
        """Longest unused first: the order in which they are taken."""
        return tuple(self._kept)
