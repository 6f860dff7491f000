"""Prefixes outlive their engine: whole step loops that follow one another over one folder."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sparkstral.engine.kv_persistence import KvPersistence
from sparkstral.engine.messages import Abort
from sparkstral.kv_cache.block_store import BlockStore
from sparkstral.kv_cache.invariants import check
from sparkstral.runner.block_copy import BlockCopier
from sparkstral.types import FinishReason
from tests.support.core_bench import BLOCK_SIZE, Engine, request

PROMPT = [7 + i % 29 for i in range(90)]


def engine(folder: Path, num_blocks: int = 64) -> Engine:
    bench = Engine(num_blocks)
    core = bench.core
    store = BlockStore(folder, b"context model", 1 << 20)
    core._persistence = KvPersistence(
        core._scheduler._cache, store, BlockCopier(core._runner._latent_pool), min_saved_tokens=2 * BLOCK_SIZE
    )
    return bench


def ended(bench: Engine) -> Engine:
    bench.assert_all_blocks_are_free()
    check(bench.core._scheduler._cache)
    return bench


def test_an_engine_continues_where_the_one_before_it_ended(tmp_path: Path) -> None:
    first, fresh = engine(tmp_path), Engine()
    first.serve(request("a", PROMPT))
    ended(first)
    second = engine(tmp_path)
    longer = [*PROMPT, 41, 42, 43]
    assert second.serve(request("b", longer)) == fresh.serve(request("b", longer))
    assert second.last("b").num_cached_tokens == 88  # 22 whole blocks
    assert fresh.last("b").num_cached_tokens == 0
    ended(second)


def test_what_parts_from_the_prefix_is_computed(tmp_path: Path) -> None:
    engine(tmp_path).serve(request("a", PROMPT))
    other = [*PROMPT[:50], 3, *PROMPT[51:]]
    second, fresh = engine(tmp_path), Engine()
    assert second.serve(request("b", other)) == fresh.serve(request("b", other))
    assert second.last("b").num_cached_tokens == 48


def test_a_damaged_block_ends_the_prefix_and_is_computed_anew(tmp_path: Path) -> None:
    first = engine(tmp_path)
    first.serve(request("a", PROMPT))
    damaged = sorted(tmp_path.rglob("*.kv"))[3]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    second, fresh = engine(tmp_path), Engine()
    assert second.serve(request("b", PROMPT)) == fresh.serve(request("b", PROMPT))
    assert second.last("b").num_cached_tokens < 88
    ended(second)


def test_short_requests_are_not_saved(tmp_path: Path) -> None:
    engine(tmp_path).serve(request("a", [1, 2, 3], max_tokens=2))
    assert list(tmp_path.rglob("*.kv")) == []


def test_a_pool_that_is_short_takes_what_fits(tmp_path: Path) -> None:
    engine(tmp_path).serve(request("a", PROMPT))
    small, fresh = engine(tmp_path, num_blocks=27), Engine(27)
    requests = [request("b", PROMPT), request("c", [*PROMPT[:30], *range(40)]), request("d", PROMPT[:60])]
    assert small.serve(*requests) == fresh.serve(*requests)
    ended(small)


def test_a_request_can_be_aborted_while_it_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path).serve(request("a", PROMPT))
    monkeypatch.setattr("sparkstral.engine.kv_persistence.BLOCKS_READ_A_TURN", 1)
    second = engine(tmp_path)
    sent = []

    def abort_at_first_sign(_: object) -> None:
        if not sent:
            sent.append(second.inbox.put(Abort("b")))

    second.on_outputs = abort_at_first_sign
    second.serve(request("b", PROMPT))
    assert second.last("b").finish_reason is FinishReason.ABORTED
    assert second.tokens("b") == []
    ended(second)


def test_a_full_disk_costs_the_requests_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_space)
    one, fresh = engine(tmp_path), Engine()
    requests = [request("a", PROMPT), request("b", PROMPT[::-1])]
    assert one.serve(*requests) == fresh.serve(*requests)
    ended(one)
