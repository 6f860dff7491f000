"""The wire of POST /v1/completions: every field is supported, refused by name, or listed as ignored.

Source of the fields: OpenAI's completions reference; `add_special_tokens` is the spelling of the open servers.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from sparkstral.api.openai_sampling import SamplingFields
from sparkstral.api.wire import Ignored, Refused
from sparkstral.types import MAX_TOP_LOGPROBS

MAX_PROMPTS = 128  # OpenAI takes more, and answers them no sooner
DEFAULT_MAX_TOKENS = 16  # OpenAI's

TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


def _kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "@text"
    if isinstance(value, list) and value:
        return {str: "@texts", int: "@tokens", list: "@token_lists"}.get(type(value[0]))
    return None


Prompt = Annotated[
    Annotated[str, Tag("@text")]
    | Annotated[list[str], Field(max_length=MAX_PROMPTS), Tag("@texts")]
    | Annotated[TokenIds, Tag("@tokens")]
    | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS), Tag("@token_lists")],
    Discriminator(
        _kind,
        custom_error_type="sentence",
        custom_error_message="must be a text, token ids, or a list of several of either, and not empty",
    ),
]


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions."""

    model: str | None = None
    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None

    best_of: Annotated[int | None, Refused("every answer that is made is sent; use n", (1,))] = None
    suffix: Annotated[Any, Refused("the model cannot fill in the middle", ("",))] = None
    response_format: Annotated[Any, Refused("use /v1/chat/completions", ({"type": "text"},))] = None
    guided_json: Annotated[Any, Refused("use response_format of /v1/chat/completions")] = None
    structured_outputs: Annotated[Any, Refused("use response_format of /v1/chat/completions")] = None
    prompt_logprobs: Annotated[Any, Refused("use echo with logprobs", (0,))] = None
    stop_token_ids: Annotated[Any, Refused("use stop", ([],))] = None
    user: Annotated[Any, Ignored("nothing is kept about users")] = None
    cache_prompt: Annotated[Any, Ignored("prefixes are always reused")] = None
