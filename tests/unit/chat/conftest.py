from __future__ import annotations

import pytest
from tests.support.tekken import v15_tokenizer

from sparkstral.chat.tokenizer import ChatTokenizer


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    return v15_tokenizer()
