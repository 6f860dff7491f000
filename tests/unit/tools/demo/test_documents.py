from __future__ import annotations

from pathlib import Path

import pytest

from tools.demo import documents


def test_a_dead_worker_is_named_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(documents, "mixture", broken)
    monkeypatch.setattr(documents, "LOOK_AFTER_WORKER_S", 0.05)
    source = documents.BatchSource(Path("absent"), (1024, 0.2, 4.0), seed=1, num_workers=1)
    with pytest.raises(RuntimeError, match="Data worker 0 died before batch 0"):
        source.take()
    source.close()
