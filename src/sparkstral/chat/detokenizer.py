"""Token bytes to text, while they come.

Owns the bytes that are not yet a character: they are held back until it is whole. Bytes that can never become
one are replaced by U+FFFD, so that the joined text is that of the joined bytes, however they were cut.
"""

from __future__ import annotations

import codecs


class Detokenizer:
    """One run of text, decoded piece by piece."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        """The text that is complete with `data`."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Ends the run: U+FFFD for a character that stayed incomplete, else nothing."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
