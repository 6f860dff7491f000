"""Which full block holds which tokens after which prefix.

Owns the mapping from a prefix to its blocks; must not know requests or reference counts. A full block's key
is a digest chained over the salt and all tokens up to the block's end. A digest only finds a block: a hit
also needs equal tokens and the same parent block (the salt itself for a first block), so that even colliding
digests never mix users. That comparison is whole by induction, because a block leaves the index before its
parent does (manager.py says why).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from sparkstral.types import ImageInput

Digest = Callable[[bytes], bytes]
Parent = int | str
"""The block before, or the salt for a first block."""


def digest_256(data: bytes) -> bytes:
    """BLAKE2b, 32 bytes: about 1 µs for a block, and the same in every process."""
    return blake2b(data, digest_size=32).digest()


class BlockKey(NamedTuple):
    digest: bytes
    tokens: bytes  # 4 bytes each; then 32 of each image that has one of them, since all images' tokens are alike


class KeyChain:
    """The keys of one request's full blocks, made when first asked for: tokens are only ever appended."""

    __slots__ = ("_block_size_tokens", "_digest", "_images", "_keys", "salt")

    def __init__(
        self, salt: str, block_size_tokens: int, digest: Digest, images: Sequence[ImageInput] = ()
    ) -> None:
        self.salt = salt
        self._block_size_tokens = block_size_tokens
        self._digest = digest
        self._images = images
        self._keys: list[BlockKey] = []

    def key(self, index: int, token_ids: Sequence[int]) -> BlockKey:
        """The key of block `index`, whose tokens must all be in `token_ids`."""
        keys = self._keys
        while len(keys) <= index:
            begin = len(keys) * self._block_size_tokens
            end = begin + self._block_size_tokens
            tokens = array("I", token_ids[begin:end]).tobytes()
            tokens += b"".join(i.digest for i in self._images if i.offset < end and i.end > begin)
            parent = keys[-1].digest if keys else self._digest(self.salt.encode())
            keys.append(BlockKey(self._digest(parent + tokens), tokens))
        return keys[index]


class IndexEntry(NamedTuple):
    key: BlockKey
    block_id: int
    parent: Parent


class PrefixIndex:
    """One block for each known prefix that ends at a block's end."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, IndexEntry] = {}
        self._by_block: dict[int, IndexEntry] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._by_block

    def entries(self) -> Iterable[IndexEntry]:
        return self._by_block.values()

    def find(self, key: BlockKey, parent: Parent) -> int | None:
        """The block that holds exactly these tokens after exactly this parent."""
        entry = self._by_digest.get(key.digest)
        if entry is None or entry.parent != parent or entry.key.tokens != key.tokens:
            return None
        return entry.block_id

    def holds(self, key: BlockKey, block_id: int) -> bool:
        """Whether the block with this key is that one."""
        entry = self._by_digest.get(key.digest)
        return entry is not None and entry.block_id == block_id and entry.key.tokens == key.tokens

    def add(self, key: BlockKey, block_id: int, parent: Parent) -> bool:
        """Enter a block; False, and nothing done, if its digest is taken or its parent is not in the
        index."""
        if key.digest in self._by_digest or (isinstance(parent, int) and parent not in self._by_block):
            return False
        entry = IndexEntry(key, block_id, parent)
        self._by_digest[key.digest] = entry
        self._by_block[block_id] = entry
        return True

    def remove(self, block_id: int) -> None:
        entry = self._by_block.pop(block_id, None)
        if entry is not None:
            del self._by_digest[entry.key.digest]

    def remove_with_descendants(self, block_ids: Iterable[int]) -> list[int]:
        """Remove these blocks and all that follow on them; returns what was removed. Reads the whole index:
        rare."""
        children: dict[Parent, list[int]] = {}
        for entry in self._by_block.values():
            children.setdefault(entry.parent, []).append(entry.block_id)
        removed = []
        pending = list(block_ids)
        while pending:
            block_id = pending.pop()
            if block_id in self._by_block:
                self.remove(block_id)
                removed.append(block_id)
                pending += children.get(block_id, ())
        return removed
