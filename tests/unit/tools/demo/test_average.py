from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools.demo import native_layout
from tools.demo.average import average


def test_the_mean_is_weighted_towards_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"first": {"norm": torch.tensor([1.0, 2.0])}, "second": {"norm": torch.tensor([3.0, 6.0])}}
    monkeypatch.setattr(native_layout, "read", lambda folder: stored[folder.name])
    mean = average(Path("first"), Path("second"), 0.25)
    assert mean["norm"].tolist() == [1.5, 3.0]
