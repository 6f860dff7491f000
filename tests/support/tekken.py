"""A tekken.json of version v15 with the full vocabulary, built from the one that mistral-common ships.

The released vocabularies are the same bytes; only names of unused control tokens differ from the real file.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sparkstral.chat.tokenizer import ChatTokenizer
from tools.demo.make_tokenizer import NUM_SPECIAL_TOKENS, RELEASED_NUM_RANKS, tekken_v15

VOCAB_SIZE = NUM_SPECIAL_TOKENS + RELEASED_NUM_RANKS

VOCAB_SIZE = 131_072  # with 1,000 control tokens


def write_tekken(folder: Path) -> Path:
    """Writes `folder`/tekken.json and returns its path."""
    path = folder / "tekken.json"
    path.write_text(json.dumps(tekken_v15(RELEASED_NUM_RANKS), ensure_ascii=False), encoding="utf-8")
    return path


@cache
def v15_tokenizer() -> ChatTokenizer:
    """The full tokenizer, built once in a test process (about 2 s)."""
    with TemporaryDirectory() as folder:
        return ChatTokenizer.load(write_tekken(Path(folder)))
