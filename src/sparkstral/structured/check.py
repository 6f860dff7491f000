"""Whether a grammar can be compiled, asked before a request is handed to the engine.

Owns the answers that were found, the time limit and the guard of the native stack. Must not know what a grammar says.
May be asked from several threads.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from llguidance import LLMatcher

from sparkstral.structured.depth import too_deep

TIME_LIMIT_S = 5.0  # as the engine gives: a schema of 2,400 patterned properties takes 0.7 s (measured 2026-12-02)
MAX_REMEMBERED = 1024  # grammars' digests, with the reasons against them


class GrammarCheck:
    """Compiles each grammar once, however often it is asked about."""

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._time_limit_s = time_limit_s
        self._lock = threading.Lock()
        self._reasons: OrderedDict[bytes, str] = OrderedDict()

    def reason_against(self, lark: str) -> str:
        """Why the grammar cannot be used; "" when it can. Takes the time limit at most."""
        digest = hashlib.sha256(lark.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            reason = self._reasons.get(digest)
        if reason is None:
            reason = too_deep(lark) or self._compile(lark)
        with self._lock:
            self._reasons[digest] = reason
            self._reasons.move_to_end(digest)
            while len(self._reasons) > MAX_REMEMBERED:
                self._reasons.popitem(last=False)
        return reason

    def _compile(self, lark: str) -> str:
        reasons: list[str] = []
        # Not a pool: a thread that hangs would keep its place, and the process from ending.
        worker = threading.Thread(target=lambda: reasons.append(_reason_against(lark)), name="grammar", daemon=True)
        worker.start()
        worker.join(self._time_limit_s)
        return reasons[0] if reasons else f"it did not compile in {self._time_limit_s:g} s; make it simpler"


def _reason_against(lark: str) -> str:
    error: str = LLMatcher.validate_grammar(lark, None)
    return error.split("JSON schema: ")[-1].split("\n   1 |")[0]
