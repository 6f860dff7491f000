"""Stop strings: the client's texts at which the answer ends, wherever the tokens are cut.

Owns finding them in the answer's text. Reasoning and tool calls are not searched: a stop string is about the
answer. Must not know tokens: it stands behind the output parser.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkstral.types import Failed, Finished, OutputEvent, TextDelta, TextLogprob


class StopStrings:
    """A filter over events. When `matched` is set the caller aborts the request; the rest is swallowed.

    Of several stop strings the one that is complete first counts (the longest, if two end together): only
    this reading is the same for every split of the text.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._held = ""  # the end of the text so far, which may be the beginning of a stop string
        self._logprobs: list[TextLogprob] = []  # of tokens that begin in the held text
        self._begin = 0  # bytes of the held text before the first of these tokens
        self.matched: str | None = None

    def feed(self, events: Iterable[OutputEvent]) -> list[OutputEvent]:
        """The events that the client may see now."""
        out: list[OutputEvent] = []
        for event in events:
            if self.matched is not None:
                if isinstance(event, Finished):
                    out.append(Finished("stop", event.usage, self.matched))
                elif isinstance(event, Failed):
                    out.append(event)
            elif isinstance(event, TextDelta):
                out += self._delta(self._search(event.text), event.logprobs)
            else:
                held, self._held = self._held, ""
                out += self._delta(held)
                out.append(event)
        return out

    def _delta(self, text: str, logprobs: Sequence[TextLogprob] = ()) -> list[OutputEvent]:
        """A delta of `text`, if there is any, with the log probabilities of the tokens that begin in it."""
        self._logprobs += logprobs
        if not text:
            return []
        num_bytes, num_sent = len(text.encode("utf-8", "surrogatepass")), 0
        if self.matched is None and not self._held:
            num_sent, self._begin = len(self._logprobs), 0
        else:
            while num_sent < len(self._logprobs) and self._begin < num_bytes:
                self._begin += len(self._logprobs[num_sent].token)
                num_sent += 1
            self._begin -= num_bytes
        sent, self._logprobs = self._logprobs[:num_sent], self._logprobs[num_sent:]
        return [TextDelta(text, tuple(sent))]

    def _search(self, delta: str) -> str:
        text = self._held + delta
        found = [(text.index(s) + len(s), -len(s), s) for s in self._stop if s in text]
        if found:
            end, _, self.matched = min(found)
            self._held = ""
            return text[: end - len(self.matched)]
        keep = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins, `stop` itself excluded."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
