"""llguidance over the full v15 vocabulary, to ask a grammar what it lets through."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from sparkstral.chat.tokenizer import ChatTokenizer, Control
from sparkstral.types import GrammarSpec
from tests.support.tekken import v15_tokenizer


class _Vocabulary:
    """What llguidance's wrapper reads of a tokenizer: raw bytes of every token."""

    eos_token_id = Control.EOS.value
    bos_token_id = 1

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.special_token_ids = list(range(tokenizer.num_control_tokens))
        self.tokens = [
            f"<{i}>".encode() if tokenizer.is_control(i) else tokenizer.token_bytes(i)
            for i in range(tokenizer.vocab_size)
        ]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


@cache
def _vocabulary() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Vocabulary(v15_tokenizer())))


def allows(grammar: GrammarSpec, token_ids: Sequence[int]) -> bool:
    """Whether `token_ids`, which end in </s>, are a whole answer of `grammar`."""
    *answer, end = token_ids
    assert end == Control.EOS
    matcher = LLMatcher(_vocabulary(), grammar.lark)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(answer) == len(answer) and matcher.is_accepting()
