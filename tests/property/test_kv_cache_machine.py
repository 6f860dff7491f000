"""Any order of the manager's actions: the books hold, and every table reads back exactly its own tokens.

The device is played by a list: computing a token writes (salt, all tokens up to it) into its slot, so that a
slot's content says whose history it belongs to. A digest of few bits makes collisions common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sparkstral.kv_cache.block_pool import BlockPool
from sparkstral.kv_cache.invariants import check
from sparkstral.kv_cache.manager import BlockTable, KvCacheManager
from sparkstral.kv_cache.prefix_index import BlockKey, Digest, Parent, PrefixIndex, digest_256

BLOCK_SIZE = 2
SETTINGS = settings(max_examples=120, stateful_step_count=40, deadline=None, derandomize=True)

NO_SHRINKING = settings(SETTINGS, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False)

DIGESTS: dict[str, Digest] = {
    "real": digest_256,
    "two bits": lambda data: bytes([digest_256(data)[0] & 3]),
    "none": lambda data: b"",
}
salts = st.sampled_from(["", "other"])
prompts = st.builds(  # prefixes of one text, which may part from it at some place
    lambda length, fork: [0 if position < fork else 1 for position in range(length)],
    length=st.integers(1, 9),
    fork=st.sampled_from([0, 2, 3, 5, 9, 9, 9]),
)


@dataclass(eq=False)
class Sequence:
    salt: str
    tokens: list[int]
    table: BlockTable
    num_computed: int = 0
    admitted: bool = False


class KvCacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[Sequence] = []

    @initialize(digest=st.sampled_from(sorted(DIGESTS)), num_blocks=st.integers(4, 14))
    def start(self, digest: str, num_blocks: int) -> None:
        self.cache = KvCacheManager(num_blocks, BLOCK_SIZE, DIGESTS[digest])
        self.slots: list[Any] = [None] * (num_blocks * BLOCK_SIZE)

    def pick(self, data: st.DataObject, admitted: bool) -> Sequence | None:
        candidates = [s for s in self.sequences if s.admitted is admitted]
        return data.draw(st.sampled_from(candidates)) if candidates else None

    def slot(self, sequence: Sequence, position: int) -> int:
        return sequence.table.block_ids[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE

    @rule(salt=salts, tokens=prompts)
    def open(self, salt: str, tokens: list[int]) -> None:
        self.sequences.append(Sequence(salt, tokens, self.cache.new_table(salt)))

    @rule(data=st.data(), num_reserved_blocks=st.integers(0, 2))
    def admit(self, data: st.DataObject, num_reserved_blocks: int) -> None:
        sequence = self.pick(data, admitted=False)
        if sequence is not None:
            self.admit_sequence(sequence, num_reserved_blocks)

    @rule(salt=salts, tokens=prompts)
    def pass_through(self, salt: str, tokens: list[int]) -> None:
        """A whole life at once: it leaves kept blocks, which others hit or take."""
        sequence = Sequence(salt, tokens, self.cache.new_table(salt))
        self.admit_sequence(sequence, num_reserved_blocks=0)
        if sequence.admitted:
            self.compute_tokens(sequence, len(tokens) - sequence.num_computed)
            self.every_table_reads_its_own_tokens()
            self.cache.release(sequence.table)

    def admit_sequence(self, sequence: Sequence, num_reserved_blocks: int) -> None:
        num_free_blocks = self.cache.num_free_blocks
        num_cached = self.cache.admit(sequence.table, sequence.tokens, num_reserved_blocks)
        if num_cached is None:
            assert sequence.table.block_ids == []
            assert self.cache.num_free_blocks == num_free_blocks
            assert num_free_blocks < -(-len(sequence.tokens) // BLOCK_SIZE) + num_reserved_blocks
        else:
            assert num_cached < len(sequence.tokens)
            assert self.cache.num_free_blocks >= num_reserved_blocks
            sequence.admitted, sequence.num_computed = True, num_cached

    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        sequence = self.pick(data, admitted=True)
        if sequence is None or sequence.num_computed == len(sequence.tokens):
            return
        self.compute_tokens(sequence, data.draw(st.integers(1, len(sequence.tokens) - sequence.num_computed)))

    def compute_tokens(self, sequence: Sequence, num_tokens: int) -> None:
        for position in range(sequence.num_computed, sequence.num_computed + num_tokens):
            history = tuple(sequence.tokens[: position + 1])
            self.slots[self.slot(sequence, position)] = (sequence.salt, history)
        sequence.num_computed += num_tokens
        self.cache.commit(sequence.table, sequence.tokens, sequence.num_computed)

    @rule(data=st.data(), token_id=st.integers(0, 1))
    def append(self, data: st.DataObject, token_id: int) -> None:
        sequence = self.pick(data, admitted=True)
        if sequence is None:
            return
        num_free_blocks = self.cache.num_free_blocks
        if self.cache.grow(sequence.table, len(sequence.tokens) + 1):
            sequence.tokens.append(token_id)
        else:
            assert self.cache.num_free_blocks == num_free_blocks == 0

    @rule(data=st.data())
    def skip_cached(self, data: st.DataObject) -> None:
        sequence = self.pick(data, admitted=True)
        if sequence is None or sequence.num_computed == len(sequence.tokens):
            return
        num_computed = self.cache.skip_cached(sequence.table, sequence.tokens, sequence.num_computed)
        assert sequence.num_computed <= num_computed < len(sequence.tokens)
        sequence.num_computed = num_computed

    @rule(is_wanted=st.sampled_from([False, False, False, True]))  # seldom: it ends what others could hit
    def forget_unused(self, is_wanted: bool) -> None:
        if not is_wanted:
            return
        num_kept = len(self.cache.pool.kept_blocks())
        assert self.cache.forget_unused() == num_kept
        assert not self.cache.pool.kept_blocks()

    @rule(data=st.data(), forget=st.booleans())
    def give_back(self, data: st.DataObject, forget: bool) -> None:
        sequence = self.pick(data, admitted=True)
        if sequence is None:
            return
        if forget:
            self.cache.discard(sequence.table)
        else:
            self.cache.release(sequence.table)
        sequence.admitted, sequence.num_computed = False, 0

    @precondition(lambda self: hasattr(self, "cache"))
    @invariant()
    def the_books_hold(self) -> None:
        check(self.cache)

    @precondition(lambda self: hasattr(self, "cache"))
    @invariant()
    def every_table_reads_its_own_tokens(self) -> None:
        for sequence in self.sequences:
            for position in range(sequence.num_computed):
                expected = (sequence.salt, tuple(sequence.tokens[: position + 1]))
                assert self.slots[self.slot(sequence, position)] == expected

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for sequence in self.sequences:
                if sequence.admitted:
                    self.cache.release(sequence.table)
            check(self.cache)
            assert self.cache.num_free_blocks == self.cache.pool.num_usable


def test_the_books_hold_whatever_happens() -> None:
    run_state_machine_as_test(KvCacheMachine, settings=SETTINGS)


# ---- the machine is able to fail: each defect below is found -----------------------------------------------


def trust_digests(index: PrefixIndex, key: BlockKey, parent: Parent) -> int | None:
    entry = index._by_digest.get(key.digest)
    return None if entry is None else entry.block_id


def ignore_parents(index: PrefixIndex, key: BlockKey, parent: Parent) -> int | None:
    entry = index._by_digest.get(key.digest)
    return entry.block_id if entry is not None and entry.key.tokens == key.tokens else None


def release_from_the_front(cache: KvCacheManager, table: BlockTable) -> None:
    for block_id in table.block_ids:
        cache.pool.release(block_id, keep=block_id in cache.index)
    table.block_ids = []
    table.num_full_blocks = 0
    table.changed()
    cache.tables.discard(table)


def hold_without_counting(pool: BlockPool, block_id: int) -> None:
    if pool.num_holders(block_id) == 0:
        del pool._kept[block_id]
        pool._num_holders[block_id] = 1


def discard_without_forgetting(cache: KvCacheManager, table: BlockTable) -> None:
    cache.index.remove(table.block_ids[0])
    cache.release(table)


def append_without_forgetting(cache: KvCacheManager, table: BlockTable, num_blocks: int) -> None:
    table.block_ids += [cache.pool.take() for _ in range(num_blocks)]
    table.changed()


@pytest.mark.parametrize(
    ("owner", "name", "defect"),
    [
        (PrefixIndex, "find", trust_digests),
        (PrefixIndex, "find", ignore_parents),
        (KvCacheManager, "release", release_from_the_front),
        (BlockPool, "hold", hold_without_counting),
        (KvCacheManager, "discard", discard_without_forgetting),
        (KvCacheManager, "_append_fresh", append_without_forgetting),
    ],
)
def test_a_defect_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, defect: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, defect)
    with pytest.raises(Exception):  # noqa: B017, PT011  which one depends on where the defect first shows
        run_state_machine_as_test(KvCacheMachine, settings=NO_SHRINKING)
