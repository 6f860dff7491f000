from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkstral.cli.local_server import local_server
from sparkstral.config import EngineConfig
from sparkstral.demo.location import DEMO_CHECKPOINT


@pytest.fixture(scope="session")
def demo_url() -> Iterator[str]:
    """The demo, served as a program would serve it."""
    with local_server(EngineConfig(DEMO_CHECKPOINT, device="cpu")) as url:
        yield url
