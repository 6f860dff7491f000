"""One tiny model for all tests of whole engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.tiny_engine import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests share the machine, and threads that wait for each other on busy cores are slower than one."""
    torch.set_num_threads(1)
