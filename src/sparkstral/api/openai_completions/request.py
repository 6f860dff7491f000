"""What a completions body means: wire object → one TextRequest for each prompt. Must not know status codes."""

from __future__ import annotations

from sparkstral.api.openai_completions.schema import DEFAULT_MAX_TOKENS, MAX_PROMPTS, CompletionRequest
from sparkstral.api.openai_sampling import sampling_choice
from sparkstral.errors import RequestError
from sparkstral.types import TextRequest


def to_text_requests(wire: CompletionRequest) -> list[TextRequest]:
    """Raises RequestError naming the field for what is well formed and yet cannot be meant."""
    max_tokens = DEFAULT_MAX_TOKENS if wire.max_tokens is None else wire.max_tokens
    if max_tokens == 0 and not wire.echo:
        raise RequestError("`max_tokens` is 0, which leaves nothing to send without `echo`.", "max_tokens")
    sampling = sampling_choice(wire, max_tokens, wire.logprobs)
    prompts = _prompts(wire)
    number = len(prompts) * (wire.n or 1)
    if number > MAX_PROMPTS:
        raise RequestError(f"`n` asks for {number} answers to all prompts together; {MAX_PROMPTS} is the most.", "n")
    return [
        TextRequest(prompt, sampling, echo=bool(wire.echo), adds_begin=wire.add_special_tokens is not False)
        for prompt in prompts
    ]


def _prompts(wire: CompletionRequest) -> list[str | tuple[int, ...]]:
    prompts: list[str | tuple[int, ...]] = []
    token_ids: list[int] = []
    for item in [wire.prompt] if isinstance(wire.prompt, str) else wire.prompt:
        if isinstance(item, int):
            token_ids.append(item)
        else:
            prompts.append(item if isinstance(item, str) else tuple(item))
    return [*prompts, tuple(token_ids)] if token_ids else prompts
