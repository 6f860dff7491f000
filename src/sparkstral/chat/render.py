"""A chat request → the prompt's token ids."""

from __future__ import annotations

from dataclasses import dataclass

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.chat.tool_ids import ToolIdMap
from sparkstral.types import ChatRequest, Prompt


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """`repairs` names what was changed in the message list (chat/history.py)."""

    prompt: Prompt
    repairs: tuple[str, ...]
    tool_ids: ToolIdMap


def render(request: ChatRequest, tokenizer: ChatTokenizer) -> RenderedPrompt:
    """The prompt of `request`. Raises RequestError, naming the field, when it cannot be rendered."""
    raise NotImplementedError
