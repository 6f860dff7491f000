"""The wire of POST /tokenize and /detokenize. Source of the fields: vLLM's endpoints of these names.

/render takes the body of /v1/chat/completions.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from sparkstral.api.efforts import Effort
from sparkstral.api.openai_chat.schema import FunctionTool, Message
from sparkstral.api.wire import Ignored, Wire


class TokenizeRequest(Wire):
    """The body of POST /tokenize: a `prompt`, or `messages` with what belongs to them."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[FunctionTool] | None = None
    reasoning_effort: Effort = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: Annotated[Any, Ignored("a last assistant message is continued")] = None
    continue_final_message: Annotated[Any, Ignored("a last assistant message is continued")] = None


class DetokenizeRequest(Wire):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
