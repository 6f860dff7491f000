from __future__ import annotations

from pathlib import Path

import pytest

from sparkstral.engine.host_process import prefer_as_victim, release_free_heap


@pytest.mark.parametrize(("before", "after"), [("0", "500"), ("-900", "500"), ("800", "800")])
def test_the_engine_goes_before_what_is_small(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "oom_score_adj"
    path.write_text(before + "\n")
    prefer_as_victim(path)
    assert path.read_text().strip() == after


def test_where_the_kernel_does_not_listen_nothing_happens(tmp_path: Path) -> None:
    prefer_as_victim(tmp_path / "absent")
    release_free_heap()
