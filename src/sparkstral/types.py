"""The vocabulary: what passes between the rooms, as plain frozen dataclasses.

Owns the types that cross a room's or the process' line. Standard library only; no tensor, no wire schema.
Types that stay inside one room live in that room. The names are the field's words (docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

PrefillForm = Literal["w4a16", "w4a4"]  # what routed experts' weights are multiplied with in prompts: bfloat16, NVFP4
Precision = Literal["bf16", "fp8"]  # in which numbers the engine holds what it could hold in either

# --------------------------------------------------------------------------------------------------------------
# Tokens: what serving hands to the engine, and what comes back
# --------------------------------------------------------------------------------------------------------------


class FinishReason(StrEnum):
    """Why a request ended well. A request that ended badly carries a `Failure` instead (law L6)."""

    STOP = "stop"  # the model closed its turn, or a stop string was met
    LENGTH = "length"  # max_tokens or the context was reached
    ABORTED = "aborted"  # the client left or serving had enough (stop string)


MAX_BIASED_TOKENS = 1024  # of a request, as OpenAI has it
MAX_TOP_LOGPROBS = 20  # as OpenAI has it


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Serving fills in every default, so the engine knows none.

    temperature 0 is greedy; top_k 0 and top_p 1 and min_p 0 switch that filter off; seed None draws one.
    """

    max_tokens: int
    temperature: float
    stop_token_ids: tuple[int, ...]
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    banned_token_ids: tuple[int, ...] = ()  # never sampled, e.g. [TOOL_CALLS] with tool_choice none
    min_tokens: int = 0  # before so many, no stop token is sampled
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    presence_penalty: float = 0.0  # taken off the logit of each token that the answer holds already
    frequency_penalty: float = 0.0  # taken off as often as the answer holds it
    repetition_penalty: float = 1.0  # of tokens in prompt or answer: above 0 divided, below multiplied
    num_logprobs: int | None = None  # likeliest tokens to tell beside each sampled one; None: tell nothing
    num_prompt_logprobs: int | None = None  # the same of the prompt's tokens, all but the first

    @property
    def changes_logits(self) -> bool:
        return bool(
            self.logit_bias
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
        )

    @property
    def wants_logprobs(self) -> bool:
        return self.num_logprobs is not None or self.num_prompt_logprobs is not None

    def at(self, position: int) -> SamplingParams:
        """These parameters with the bans that hold for the output token of index `position`."""
        if position >= self.min_tokens:
            return self
        return replace(self, banned_token_ids=(*self.banned_token_ids, *self.stop_token_ids))


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model itself found a token, before any penalty, bias, constraint or temperature: natural
    logarithms. `top` holds the likeliest (token id, logprob) in falling order, as many as were asked for."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A constraint on the output: `lark` is an llguidance grammar whose special tokens are spelled <[id]>."""

    lark: str


@dataclass(frozen=True, slots=True)
class Urgency:
    """What a client says of its haste. Lower priorities are served earlier, as if they had come earlier; with
    `timeout_s` the answer has that long to be complete, if the server does not give less."""

    priority: int = 0
    timeout_s: float | None = None


UNHURRIED = Urgency()


@dataclass(frozen=True, slots=True)
class ImageInput:
    """An image of a prompt: its tokens' place, and the pixels of which the vision encoder makes their embeddings.

    From `offset` on the prompt has `num_rows` times `num_columns` image tokens and one that ends the row. `pixels` is
    float32, little-endian, [3, 28 * num_rows, 28 * num_columns], normalised; `digest` is of them and of their shape.
    """

    offset: int
    num_rows: int
    num_columns: int
    digest: bytes
    pixels: bytes = field(repr=False)

    @property
    def num_embeddings(self) -> int:
        return self.num_rows * self.num_columns

    @property
    def num_tokens(self) -> int:
        return self.num_rows * (self.num_columns + 1)

    @property
    def end(self) -> int:
        return self.offset + self.num_tokens


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate; crosses the process line."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    cache_salt: str = ""  # prefixes are shared only between requests of equal salt
    images: tuple[ImageInput, ...] = ()  # in the order of their tokens
    priority: int = 0  # see Urgency


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request ended badly, in a sentence for the user; `code` names the kind for the API's errors."""

    code: Literal["engine_dead", "invalid_request", "numerics", "internal", "grammar", "timeout"]
    message: str


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """What one step gave one request. Exactly one output of a request has `finish_reason` or `failure` set."""

    request_id: str
    new_token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    failure: Failure | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens served from the prefix cache
    logprobs: tuple[TokenLogprob, ...] = ()  # of the new tokens, if they were asked for
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # once, with the first new token, if they were asked for

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.failure is not None


# --------------------------------------------------------------------------------------------------------------
# A step, as a value (law L5): scheduler → runner → scheduler
# --------------------------------------------------------------------------------------------------------------


UNSEEN = -1  # as a token id of a step that was planned ahead: what the step before it samples for the request


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's part of a step: `token_ids` (num_scheduled_tokens of them) at positions from
    `num_computed_tokens` on. `samples` says that the last of them is the request's last known token, so that a
    next token is to be sampled; otherwise the step only fills the cache (a chunk of a prompt). The token of a step that
    was planned ahead is UNSEEN.

    The last `num_drafts` of the tokens are guesses, behind the last known token: each stands only if it is what is
    sampled behind those before it."""

    request_id: str
    token_ids: tuple[int, ...]
    num_computed_tokens: int
    block_ids: tuple[int, ...]  # all blocks of the request, in order
    samples: bool
    num_drafts: int = 0
    num_wanted_drafts: int = 0  # guesses that the runner is to make of what follows what it samples
    images: tuple[ImageInput, ...] = ()  # that these tokens touch


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What the runner must know once about a request that it sees for the first time (or again after preemption)."""

    request_id: str
    sampling: SamplingParams
    grammar: GrammarSpec | None
    output_token_ids: tuple[int, ...]  # tokens sampled before a preemption: state of seed and grammar
    prompt_token_ids: tuple[int, ...] = ()  # where sampling, log probabilities or drafts look at them, else nothing


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step, planned. Empty `scheduled` means that there is nothing to do."""

    step: int
    scheduled: tuple[ScheduledRequest, ...]
    new_requests: tuple[NewRequest, ...] = ()
    finished_request_ids: tuple[str, ...] = ()  # the runner may forget these
    images: tuple[ImageInput, ...] = ()  # to be encoded before the tokens are computed
    dropped_images: tuple[bytes, ...] = ()  # digests whose embeddings are forgotten before that

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(len(r.token_ids) for r in self.scheduled)


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """What a step gave: for each request with `samples` its sampled ids, or a failure for that request alone. All
    sampled ids but the last are drafts that stand."""

    sampled: Mapping[str, tuple[int, ...]]
    failures: Mapping[str, Failure] = field(default_factory=dict)
    logprobs: Mapping[str, tuple[TokenLogprob, ...]] = field(default_factory=dict)  # of the sampled ids
    # Of the prompt's tokens that follow those of the step, for requests that want them.
    prompt_logprobs: Mapping[str, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    drafts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # guesses of what follows the sampled ids
    proposing_s: float = 0.0  # what making them took


# --------------------------------------------------------------------------------------------------------------
# The engine as its clients see it
# --------------------------------------------------------------------------------------------------------------


class EnginePhase(StrEnum):
    STARTING = "starting"
    LOADING = "loading"
    WARMING_UP = "warming up"
    READY = "ready"
    SHORT_OF_MEMORY = "short of memory"  # goes on with what it has, and takes nothing new
    STALLED = "stalled"  # was ready, and has given no sign of life for a while
    RESTARTING = "restarting"  # was ready, has died, and another is about to be started
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Where the engine stands. `progress` is 0..1 within the phase; `detail` is a sentence, the reason when DEAD or
    RESTARTING.
    `is_usage_error` says of a death that the settings are to blame, and not the machine or the program."""

    phase: EnginePhase
    progress: float = 0.0
    detail: str = ""
    is_usage_error: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """How the host's memory stands: the stage in a word and as a number (0 calm, 1 shrink, 2 refuse, 3 end)."""

    stage: str
    level: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """A part of the engine's memory: as it was planned, and as it was found when the engine was ready (None: cannot be
    told apart)."""

    name: str
    planned_bytes: int
    actual_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """All parts; what the system says that the engine took since the plan, and what of that has no name."""

    lines: tuple[MemoryLine, ...]
    planned_bytes: int
    taken_bytes: int
    residual_bytes: int


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that are fixed once the engine is ready; GET /health shows them, as it does `EngineStats`."""

    max_model_len: int  # tokens of prompt and output together that one request may have
    block_size_tokens: int
    num_usable_blocks: int  # of the KV cache, for all requests together
    device: str
    dtype: str
    memory: MemoryLedger | None = None
    reads_images: bool = False
    why_blind: str = ""  # what a client is told who sends an image all the same
    speculative: str = "off"  # who drafts: eagle, prompt-lookup, or off
    max_draft_tokens: int = 0  # of a request in a step


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot, taken after a step."""

    step: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_cached_blocks: int
    num_prompt_tokens: int = 0  # since start
    num_cached_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_sick_requests: int = 0  # ended because their numbers were not finite
    num_draft_steps: int = 0  # in which drafts were verified
    num_drafts: int = 0  # a request's drafts in one step, together
    num_draft_tokens: int = 0  # verified
    num_accepted_tokens: int = 0  # of these, those that stood
    last_step_s: float = 0.0  # how long the device took for `step`


# --------------------------------------------------------------------------------------------------------------
# Text: what the protocols hand to chat, and what chat hands back
# --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkPart:
    """Reasoning in an assistant's turn of the history."""

    text: str
    closed: bool = True


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in a user's turn, or in a tool's result: the bytes of a file, or a `url` that they are to be fetched
    from. `place` is the client's name for the field, for what is to be said about it."""

    place: str
    data: bytes = field(default=b"", repr=False)
    url: str = ""


Part = TextPart | ThinkPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A finished call: `arguments` is the JSON text as the model or the client wrote it. `place` is where the client's
    body has its `name` and `arguments`."""

    id: str
    name: str
    arguments: str
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A turn. `place` is the client's name for what it came from, for what is to be said about it."""

    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[Part, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()  # assistant only
    tool_call_id: str | None = None  # tool only
    name: str | None = None  # tool only: the function's name
    prefix: bool = False  # a last assistant turn that is to be continued
    place: str = field(default="messages[]", compare=False)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool on offer; the places are where the client's body has what they are named after."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # a JSON Schema
    strict: bool = False
    name_place: str = "tools[].name"
    parameters_place: str = "tools[].parameters"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None  # with mode named
    allowed: tuple[str, ...] | None = None  # of the tools that are told these alone may be called


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    mode: Literal["text", "json_object", "json_schema"] = "text"
    schema: Mapping[str, Any] | None = None  # with mode json_schema
    strict: bool = False  # all of the schema is held to, or the request refused
    place: str = "response_format"  # where the client's body has it


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """What the client asked for; None means that the server's default holds."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False  # the answer goes on until a limit
    logit_bias: tuple[tuple[int, float], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`repairs` names what the protocol had to change in the messages to say them here; `place` is where the client's
    body has them."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "high"] = "none"
    response_format: ResponseFormat = ResponseFormat()
    sampling: SamplingChoice = SamplingChoice()
    repairs: tuple[str, ...] = ()
    place: str = "messages"


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A text, or its token ids, to go on with: no chat, no markers."""

    prompt: str | tuple[int, ...]
    sampling: SamplingChoice = SamplingChoice()
    echo: bool = False  # the prompt comes before the answer
    adds_begin: bool = True  # a text gets the token that texts begin with


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model sees. `prefilled_think`: the prompt ends inside an open [THINK]."""

    token_ids: tuple[int, ...]
    prefilled_think: bool = False
    images: tuple[ImageInput, ...] = ()  # in the order of their tokens


# --------------------------------------------------------------------------------------------------------------
# Events: what the output parser makes of token ids, and the protocols write
# --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """A `TokenLogprob` with the tokens' bytes in place of their ids; control tokens are spelled."""

    token: bytes
    logprob: float | None  # None: of the first token of a prompt, which nothing comes before
    top: tuple[tuple[bytes, float], ...] = ()
    is_text: bool = True  # else the token is a control token, of which the text has nothing


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str
    logprobs: tuple[TextLogprob, ...] = ()  # of the tokens that begin in this text, if they were asked for


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    index: int
    id: str  # 9 alphanumerics
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    index: int
    delta: str  # the joined deltas are the arguments' JSON text and nothing else


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    reason: Literal["stop", "length", "tool_calls"]
    usage: Usage
    stop_string: str | None = None  # the client's, if one of them ended the answer


@dataclass(frozen=True, slots=True)
class Failed:
    failure: Failure


OutputEvent = TextDelta | ReasoningDelta | ToolCallBegin | ToolCallArguments | ToolCallEnd | Finished | Failed
