"""Ids of tool calls: nine letters and digits, as the chat format demands, whatever a client sends.

Owns making ids, and finding one for a client's. Must not know messages.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string

_LENGTH = 9
_ALPHABET = string.ascii_letters + string.digits
_NATIVE = re.compile(r"[a-zA-Z0-9]{9}")


def new_tool_call_id() -> str:
    """A fresh id for a call that the model makes; unguessable, so that one talk's ids are no other's."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


def native_id(client_id: str) -> str:
    """The client's id in nine letters and digits: itself when it has that form, else a hash of it.

    The hash depends on nothing else, so an id maps alike in every request and after a restart. Of 62^9 =
    1.4e16 values, two among the ids of a talk of 1,000 calls meet with a chance of 4e-11.
    """
    if _NATIVE.fullmatch(client_id):
        return client_id
    number = int.from_bytes(hashlib.sha256(client_id.encode("utf-8", "surrogatepass")).digest(), "big")
    letters = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return "".join(letters)


class NativeIds:
    """The native ids of one request's calls. No way back is needed: an answer names new calls only, with ids of ours,
    and what is kept of a talk keeps the client's."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._uses: dict[str, int] = {}

    def add(self, client_id: str) -> str:
        """The native id of one more call. An id that comes again stands for another call and gets another."""
        use = self._uses.get(client_id, 0)
        native = native_id(client_id)
        while native in self._given:
            use += 1
            native = native_id(f"{client_id}#{use}")
        self._uses[client_id] = use
        self._given.add(native)
        return native
