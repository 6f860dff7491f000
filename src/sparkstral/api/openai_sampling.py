"""The fields that all of OpenAI's endpoints share, and what they mean: how tokens are chosen, and how they are sent.

Source: OpenAI's reference; `top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos` and `priority` are the
spellings of the open servers.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Tag

from sparkstral.api.urgency import MAX_PRIORITY
from sparkstral.api.wire import FiniteFloat, Ignored, Wire, by_json_type
from sparkstral.errors import RequestError
from sparkstral.types import MAX_BIASED_TOKENS, SamplingChoice

MAX_ANSWERS = 32  # as many as run at once by default
MAX_STOP_STRINGS = 16  # OpenAI takes 4; agents of the open servers send more
MAX_STOP_CHARS = 256  # a stop string is held back while it may still match, so it must stay short
MAX_TOP_K = (1 << 31) - 1  # far above any vocabulary
MAX_SEED = (1 << 63) - 1  # 64-bit signed, as OpenAI documents it

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = Annotated[
    Annotated[StopString, Tag("@text")] | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS), Tag("@list")],
    by_json_type("must be a text or a list of texts"),
]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]  # lower is earlier
Penalty = Annotated[FiniteFloat, Field(ge=-2, le=2)]
LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^\d{1,7}$")], Annotated[FiniteFloat, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASED_TOKENS),
]


class StreamOptions(Wire):
    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, Ignored("chunks are not padded")] = None


class SamplingFields(Wire):
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    stop: Stop | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[FiniteFloat, Field(gt=0, le=2)] | None = None
    logit_bias: LogitBias | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    priority: Priority | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True


def sampling_choice(wire: SamplingFields, max_tokens: int | None, num_logprobs: int | None) -> SamplingChoice:
    """Raises RequestError, naming the field, for limits that cannot both be met."""
    if max_tokens is not None and (wire.min_tokens or 0) > max_tokens:
        raise RequestError(f"`min_tokens` is {wire.min_tokens:,} and `max_tokens` only {max_tokens:,}.", "min_tokens")
    return SamplingChoice(
        max_tokens=max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=None if wire.top_k == -1 else wire.top_k,  # -1 is another spelling of "all"
        min_p=wire.min_p,
        seed=wire.seed,
        stop=(wire.stop,) if isinstance(wire.stop, str) else tuple(wire.stop or ()),
        min_tokens=wire.min_tokens or 0,
        ignore_eos=bool(wire.ignore_eos),
        logit_bias=tuple((int(token_id), bias) for token_id, bias in (wire.logit_bias or {}).items()),
        presence_penalty=wire.presence_penalty or 0.0,
        frequency_penalty=wire.frequency_penalty or 0.0,
        repetition_penalty=1.0 if wire.repetition_penalty is None else wire.repetition_penalty,
        num_logprobs=num_logprobs,
    )
