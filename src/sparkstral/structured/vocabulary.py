"""The tokens as bytes, for the grammar engine: read from tekken.json.

Owns what of that file a grammar needs; must not know chat, rendering or text (chat/tokenizer reads its own
part). Source of the layout: docs/model.md, section 6 (special ids first, then byte-level BPE: id = rank +
specials).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import llguidance

from sparkstral.errors import CheckpointError

EOS_TOKEN_ID = 2


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`token_bytes[rank]` belongs to id `num_special_tokens + rank`; `pattern` splits text before the merges."""

    token_bytes: tuple[bytes, ...]
    num_special_tokens: int
    pattern: str

    def __len__(self) -> int:
        return self.num_special_tokens + len(self.token_bytes)


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of the tekken.json at `path`. Raises `CheckpointError` if it cannot be read as one."""
    try:
        content = json.loads(path.read_bytes())
        config = content["config"]
        num_special_tokens = int(config["default_num_special_tokens"])
        num_ranks = int(config["default_vocab_size"]) - num_special_tokens
        token_bytes = tuple(base64.b64decode(entry["token_bytes"]) for entry in content["vocab"][:num_ranks])
        pattern = str(config["pattern"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read as a tekken vocabulary ({error!r}). Fetch the file again from the model's page."
        ) from error
    if len(token_bytes) != num_ranks:
        raise CheckpointError(
            f"{path}: default_vocab_size promises {num_ranks:,} tokens after the {num_special_tokens:,} "
            f"special ones, and the file holds {len(token_bytes):,}. Fetch it again from the model's page."
        )
    return Vocabulary(token_bytes, num_special_tokens, pattern)


def build_grammar_tokenizer(vocabulary: Vocabulary, vocab_size: int) -> llguidance.LLTokenizer:
    """The tokenizer that grammars are compiled for: masks have `vocab_size` bits, the model's number of
    logits.

    Knowing the merges, it spells what a grammar forces as the model would have spelt it. Takes about 1 s for
    131,072 tokens (measured 2026-12-02), so an engine builds it once. Raises `CheckpointError` if the model
    has too few.
    """
    if vocab_size < len(vocabulary):
        raise CheckpointError(
            f"tekken.json holds {len(vocabulary):,} tokens, and the model knows only {vocab_size:,}. "
            "The two files belong to different models; fetch both from the same place."
        )
    first = vocabulary.num_special_tokens
    tokenizer: llguidance.LLTokenizer = llguidance.LLTokenizer.from_tiktoken(  # type: ignore[attr-defined]
        encoder={token: first + rank for rank, token in enumerate(vocabulary.token_bytes)},
        special_tokens={f"<special_{token_id}>": token_id for token_id in range(first)},
        pattern=vocabulary.pattern,
        eos_token=EOS_TOKEN_ID,
        n_vocab=vocab_size,
        slices=None,
    )
    return tokenizer
