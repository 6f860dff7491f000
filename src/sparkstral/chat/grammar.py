"""What a request allows the model to write, as an llguidance grammar."""

from __future__ import annotations

from sparkstral.chat.tokenizer import ChatTokenizer, Control
from sparkstral.types import ChatRequest, GrammarSpec


def banned_token_ids(request: ChatRequest) -> tuple[int, ...]:
    """Tokens that must never be sampled for `request`: [TOOL_CALLS] when no tool may be called."""
    if request.tool_choice.mode == "none" or not request.tools:
        return (Control.TOOL_CALLS.value,)
    return ()


def grammar_for(request: ChatRequest, tokenizer: ChatTokenizer) -> GrammarSpec | None:
    """The grammar of `request`, or None when anything may be written.

    Raises RequestError (param tool_choice, tools[i]… or response_format) when it cannot be met.
    """
    raise NotImplementedError
