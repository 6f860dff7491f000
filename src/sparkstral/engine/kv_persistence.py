"""Cached prefixes to disk and back, in small turns of the step loop.

Owns what is saved (the full blocks of requests long enough to be worth it, when they give them back) and when a new
request waits for what the disk has of its prefix. Used by the engine thread alone. Must not know files (kv_cache/
block_store) or tensors (runner/block_copy).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass

from sparkstral.kv_cache.block_store import BlockStore
from sparkstral.kv_cache.manager import BlockTable, KvCacheManager
from sparkstral.kv_cache.prefix_index import BlockKey
from sparkstral.runner.block_copy import BlockCopier
from sparkstral.types import GenerationRequest

logger = logging.getLogger(__name__)

MIN_SAVED_TOKENS = 1024  # less is computed anew in the time that it takes to find it
BLOCKS_READ_A_TURN = 16  # about 24 MB of the full model: some 10 ms of a step that others wait for
BLOCKS_SAVED_A_TURN = 4
MIN_FREE_SHARE = 1 / 8  # of the blocks; what is restored takes none of these from those who run
CLOSE_S = 3.0  # for what is not written yet when the engine is stopped


@dataclass(eq=False, slots=True)
class _Restoring:
    request: GenerationRequest
    table: BlockTable  # holds what is there of the prefix


class KvPersistence:
    """For one engine."""

    def __init__(
        self, cache: KvCacheManager, store: BlockStore, copier: BlockCopier, min_saved_tokens: int = MIN_SAVED_TOKENS
    ) -> None:
        self._cache = cache
        self._store = store
        self._copier = copier
        self._min_blocks = max(1, min_saved_tokens // cache.block_size_tokens)
        self._restoring: deque[_Restoring] = deque()
        self._to_save: deque[tuple[BlockKey, int]] = deque()
        cache.on_release = self._on_release
        cache.on_discard = self._on_discard

    @property
    def is_busy(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._restoring or (self._to_save and self._store.has_room))

    def begin(self, request: GenerationRequest) -> bool:
        """Whether the disk has more of its prefix than the cache; then `work` gives it back when that is restored."""
        table = self._cache.new_table(request.cache_salt, request.images)
        self._cache.extend_by_cached(table, request.prompt_token_ids)
        key = self._cache.next_key(table, request.prompt_token_ids)
        if key is None or key not in self._store:
            self._cache.release(table)
            return False
        self._restoring.append(_Restoring(request, table))
        return True

    def cancel(self, request_id: str) -> bool:
        """Give up a request that is being restored; whether it was."""
        for restoring in self._restoring:
            if restoring.request.request_id == request_id:
                self._restoring.remove(restoring)
                self._cache.release(restoring.table)
                return True
        return False

    def work(self) -> list[GenerationRequest]:
        """A turn: restore some, save some. Returns the requests that wait no longer."""
        done = []
        if self._restoring:
            restoring = self._restoring[0]
            if not self._restore_some(restoring):
                self._restoring.popleft()
                self._cache.release(restoring.table)  # kept, and found by its request when that is admitted
                done.append(restoring.request)
        for _ in range(min(BLOCKS_SAVED_A_TURN, len(self._to_save))):
            if not self._store.has_room:
                break
            self._save(*self._to_save.popleft())
        return done

    def close(self) -> None:
        """Save what waits for it, as far as there is time."""
        end_s = time.monotonic() + CLOSE_S
        while self._to_save and self._store.is_writing and time.monotonic() < end_s:
            if self._store.has_room:
                self._save(*self._to_save.popleft())
            else:
                time.sleep(0.01)  # nobody is served any more
        self._store.close(max(0.1, end_s - time.monotonic()))

    def _restore_some(self, restoring: _Restoring) -> bool:
        """Whether there may be more."""
        cache, token_ids, table = self._cache, restoring.request.prompt_token_ids, restoring.table
        for _ in range(BLOCKS_READ_A_TURN):
            cache.extend_by_cached(table, token_ids)  # others may have computed it meanwhile
            key = cache.next_key(table, token_ids)
            if key is None or cache.num_free_blocks <= MIN_FREE_SHARE * cache.pool.num_usable:
                return False
            content = self._store.read(key, self._copier.num_bytes)
            if content is None:
                return False
            self._copier.write(cache.append_restored(table, key), content)
        return True

    def _save(self, key: BlockKey, block_id: int) -> None:
        if key not in self._store and self._cache.index.holds(key, block_id):
            self._store.write(key, self._copier.read(block_id))

    def _on_release(self, table: BlockTable) -> None:
        if table.num_full_blocks < self._min_blocks or not self._store.is_writing:
            return
        for index in range(table.num_full_blocks):
            key = table.keys.key(index, ())
            if key not in self._store:
                self._to_save.append((key, table.block_ids[index]))

    def _on_discard(self, table: BlockTable) -> None:
        for index in range(table.num_full_blocks):
            self._store.forget(table.keys.key(index, ()))
