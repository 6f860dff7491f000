from __future__ import annotations

import pytest

from sparkstral.chat.tokenizer import ChatTokenizer
from tests.support.tekken import v15_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    return v15_tokenizer()
