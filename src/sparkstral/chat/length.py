"""Whether a prompt is far too long, known before all of it is encoded: 11 MB of text take a CPU 16 s (2026-12-02).

Owns the counting of as much of the texts as the answer needs. The exact count is that of the rendered prompt. Must not
know a protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.types import ChatRequest, ImagePart

HOPEFUL_CHARS_PER_TOKEN = 4  # with fewer, as most texts have them, the exact count is not much dearer than this one
SLICE_CHARS = 16_384
SLICE_TOKENS = 16  # that a cut between slices may add: it goes through a word


def texts_of(request: ChatRequest) -> Iterator[str]:
    """What the prompt of `request` will hold of the client's own."""
    for message in request.messages:
        yield from (part.text for part in message.parts if not isinstance(part, ImagePart))
        yield from (call.arguments for call in message.tool_calls)
    for tool in request.tools:
        yield tool.description
        yield json.dumps(tool.parameters)


def excessive_length(texts: Sequence[str], tokenizer: ChatTokenizer, max_tokens: int) -> int | None:
    """About how many tokens `texts` have, if more than `max_tokens` for sure; takes no longer than to encode so many.
    None where the exact count must tell."""
    num_chars = sum(map(len, texts))
    if num_chars <= HOPEFUL_CHARS_PER_TOKEN * max_tokens:
        return None
    num_tokens = num_read = 0
    for text in texts:
        for begin in range(0, len(text), SLICE_CHARS):
            piece = text[begin : begin + SLICE_CHARS]
            num_tokens += max(0, tokenizer.count(piece) - SLICE_TOKENS)
            num_read += len(piece)
            if num_tokens > max_tokens:
                return round(num_tokens / num_read * num_chars)
    return None
