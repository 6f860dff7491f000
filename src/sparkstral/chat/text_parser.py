"""The model's token ids as plain text, for answers that are no turn of a chat: the counterpart of output_parser.py.

Control tokens are not text: they are dropped, and </s> ends the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from sparkstral.chat.detokenizer import Detokenizer
from sparkstral.chat.output_parser import text_logprob
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.types import Finished, FinishReason, OutputEvent, TextDelta, TextLogprob, TokenLogprob, Usage


class TextParser:
    """Parses one sequence. Feed every token once, then finish once."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer()
        self._logprobs: list[TextLogprob] = []
        self.num_tokens = 0

    def feed(self, token_ids: Iterable[int], logprobs: Iterable[TokenLogprob] = ()) -> list[OutputEvent]:
        """The text that is complete with these tokens. `logprobs`, one for each token if there are any, go with it."""
        run = bytearray()
        for token_id, logprob in zip_longest(token_ids, logprobs):
            self.num_tokens += 1
            run += self._tokenizer.token_bytes(token_id)
            if logprob is not None:
                self._logprobs.append(text_logprob(logprob, self._tokenizer))
        return self._delta(self._detokenizer.feed(bytes(run)))

    def finish(self, reason: FinishReason, *, num_prompt_tokens: int, num_cached_tokens: int = 0) -> list[OutputEvent]:
        """The last events, `Finished` at the end. `reason` is the engine's."""
        events = self._delta(self._detokenizer.flush())
        usage = Usage(num_prompt_tokens, self.num_tokens, num_cached_tokens)
        return [*events, Finished("length" if reason is FinishReason.LENGTH else "stop", usage)]

    def _delta(self, text: str) -> list[OutputEvent]:
        if not text:
            return []
        logprobs, self._logprobs = tuple(self._logprobs), []
        return [TextDelta(text, logprobs)]


def echo(token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None, tokenizer: ChatTokenizer) -> TextDelta:
    """A prompt as if it were part of the answer; `logprobs`, if asked for, are those of all its tokens but the
    first."""
    told: list[TextLogprob] = []
    if logprobs is not None:
        first = token_ids[0]
        told = [TextLogprob(tokenizer.spelled_bytes(first), None, is_text=not tokenizer.is_control(first))]
        told += [text_logprob(logprob, tokenizer) for logprob in logprobs]
    return TextDelta(tokenizer.decode(token_ids), tuple(told))
