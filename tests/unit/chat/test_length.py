"""What is far too long is known early, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from sparkstral.chat.length import SLICE_CHARS, excessive_length, texts_of
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.types import ChatMessage, ChatRequest, TextPart, Tool, ToolCall

TEXTS = ["Ebb and flow. " * 9000, "ü🌍" * 60_000, "x" * 120_000, " " * 120_000, "1234567890" * 12_000]


class CountingTokenizer:
    """A tokenizer that remembers how much it was asked to count."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_counted = 0

    def count(self, text: str) -> int:
        self.num_counted += len(text)
        return self._tokenizer.count(text)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:5]))
def test_only_what_is_too_long_is_refused(text: str, tokenizer: ChatTokenizer) -> None:
    exact = tokenizer.count(text)
    assert excessive_length([text], tokenizer, exact) is None
    few = excessive_length([text], tokenizer, exact // 4)
    assert few is None or 0.8 * exact < few < 1.2 * exact


def test_no_more_is_counted_than_must_be(tokenizer: ChatTokenizer) -> None:
    counting = CountingTokenizer(tokenizer)
    assert excessive_length([TEXTS[0]] * 9, counting, 1000) is not None  # type: ignore[arg-type]
    assert counting.num_counted == SLICE_CHARS
    assert excessive_length([TEXTS[0][:4000]], counting, 1000) is None  # type: ignore[arg-type]
    assert counting.num_counted == SLICE_CHARS


def test_all_that_a_client_can_make_long_counts() -> None:
    call = ChatMessage("assistant", (), (ToolCall("x", "f", "arguments"),))
    tool = Tool("f", "description", {"type": "parameters"})
    texts = list(texts_of(ChatRequest((ChatMessage("user", (TextPart("text"),)), call), (tool,))))
    assert texts == ["text", "arguments", "description", '{"type": "parameters"}']
