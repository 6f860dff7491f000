"""A compiled grammar, and its state in one request.

Owns the use of llguidance's matcher; must not know how grammars are written (chat/) or how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import llguidance
import llguidance.numpy
import numpy as np
from numpy.typing import NDArray

from sparkstral.errors import SparkstralError
from sparkstral.structured.depth import too_deep

# The library's own bounds keep compiling and masking to milliseconds; its long reports would show us, not the user.
_LIMITS = llguidance.LLParserLimits(verbose_errors=False)


class GrammarError(SparkstralError):
    """A grammar that is wrong, impossible or too complex, or an output that it does not allow."""


class CompiledGrammar:
    """A grammar ready for use; many requests may share it, one after the other or at once."""

    def __init__(self, tokenizer: llguidance.LLTokenizer, lark: str) -> None:
        """Compile. Raises `GrammarError` with the library's reason, or for what would overrun its stack."""
        if reason := too_deep(lark):
            raise GrammarError(f"this schema cannot be used: {reason}")
        self._start = llguidance.LLMatcher(tokenizer, lark, log_level=0, limits=_LIMITS)
        self._vocab_size = tokenizer.vocab_size
        self.matcher(()).bitmask()  # some faults show only when the first token is asked for

    def matcher(self, output_token_ids: Sequence[int]) -> GrammarMatcher:
        """The state after `output_token_ids`. Raises `GrammarError` if the grammar does not allow them."""
        matcher = GrammarMatcher(self._start.deep_copy(), self._vocab_size)
        for token_id in output_token_ids:
            matcher.advance(token_id)
        return matcher


class GrammarMatcher:
    """Where one request stands in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def bitmask(self) -> NDArray[np.int32]:
        """[ceil(vocab_size / 32)] words of what may come next; the end of the turn counts where the grammar
        is satisfied. Raises `GrammarError` when the grammar has become too complex or has no way on."""
        masks = llguidance.numpy.allocate_token_bitmask(1, self._vocab_size)
        llguidance.numpy.fill_next_token_bitmask(self._matcher, masks)
        self._check()
        mask: NDArray[np.int32] = masks[0]
        return mask

    def advance(self, token_id: int) -> None:
        """Go on by one token. Raises `GrammarError` if the grammar does not allow it here."""
        self._matcher.consume_token(token_id)
        self._check()

    def along(self, token_ids: Sequence[int]) -> list[NDArray[np.int32]]:
        """What may come next, as `bitmask` says it, here and behind each of `token_ids`, up to the first that may not
        come. The matcher stays where it is: a copy of it goes along, which takes 6 µs after any number of tokens
        (2026-12-02) and keeps an error to itself. Raises `GrammarError` if there is no way on from here; where there is
        none further on, the list ends."""
        masks = [self.bitmask()]
        scout = GrammarMatcher(self._matcher.deep_copy(), self._vocab_size) if token_ids else self
        for token_id in token_ids:
            if not masks[-1].view(np.uint32)[token_id // 32] >> token_id % 32 & 1:
                break
            try:
                scout.advance(token_id)
                masks.append(scout.bitmask())
            except GrammarError:
                break
        return masks

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error().partition("\n<state>")[0].strip())
