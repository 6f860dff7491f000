"""The message lists that agents really send, made into lists that the chat format can say.

Owns the repairs: each is a function that returns the list unchanged, or a new one, and each has a name that is
reported. No text is lost by a repair. Must not know tokens or a protocol's wire form.
Source of what the format can say: mistral-common's v15 validator; of what agents send: the reports named below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sparkstral.chat.tool_ids import ToolIdMap
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, TextPart, ThinkPart, ToolCall

Role = Literal["system", "user", "assistant", "tool"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def role_of(role: str, index: int) -> Role:
    """The role that a client's word means, for message `index`. Raises RequestError for an unknown one."""
    if role not in _ROLES:
        raise RequestError(
            f"messages[{index}].role is {role!r}; known roles are {', '.join(_ROLES)}.", f"messages[{index}].role"
        )
    return _ROLES[role]


@dataclass(frozen=True, slots=True)
class RepairedHistory:
    """`repairs` names the repairs that changed something, in the order of their work."""

    messages: tuple[ChatMessage, ...]
    repairs: tuple[str, ...]
    tool_ids: ToolIdMap


def repair_history(messages: Sequence[ChatMessage]) -> RepairedHistory:
    raise NotImplementedError
