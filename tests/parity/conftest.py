from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sparkstral.model.mistral4 import Mistral4
from tests.parity.check import TOKEN_IDS, build
from tests.parity.oracle import Oracle, OracleOutput


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """These matrices are small: more threads only wait for each other, and for other tests' threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="session")
def expected(oracle: Oracle) -> OracleOutput:
    return oracle.run(TOKEN_IDS)


@pytest.fixture(scope="session")
def model(oracle: Oracle) -> Mistral4:
    return build(oracle)
