"""A request on its way through the scheduler.

Owns the mutable state of one sequence; only the scheduler changes it. Must not know blocks' contents or text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile

from sparkstral.kv_cache.manager import BlockTable
from sparkstral.speculative.controller import DraftRecord
from sparkstral.types import FinishReason, GrammarSpec, ImageInput, SamplingParams, TokenLogprob


class RequestStatus(Enum):
    WAITING = "waiting"  # holds no blocks; new, or preempted
    RUNNING = "running"  # holds blocks for all its tokens
    FINISHED = "finished"  # its terminal output is made


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. `token_ids` is prompt and output; the first `num_computed_tokens` of them are in the
    cache."""

    request_id: str
    place: int  # in the order of service, see policy
    sampling: SamplingParams
    grammar: GrammarSpec | None
    token_ids: list[int]
    num_prompt_tokens: int
    max_total_tokens: int  # where max_tokens or the context ends it
    table: BlockTable
    images: tuple[ImageInput, ...] = ()
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens that this request did not compute itself
    num_preemptions: int = 0
    num_times_overtaken: int = 0
    num_releases_at_refusal: int = -1  # the cache's count when it last had no room for this request
    is_known_to_runner: bool = False
    draft_token_ids: tuple[int, ...] = ()  # guesses of what follows `token_ids`
    draft_record: DraftRecord = field(default_factory=DraftRecord)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # entry i is of the prompt's token i + 1
    stop_token_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.stop_token_ids = frozenset(self.sampling.stop_token_ids)

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens still to compute before a next one can be sampled; 1 in plain decode."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        return tuple(self.token_ids[self.num_prompt_tokens :])

    @property
    def prompt_is_read(self) -> bool:
        """Whether sampling or log probabilities look at the prompt's tokens."""
        return self.sampling.repetition_penalty != 1.0 or self.sampling.num_prompt_logprobs is not None

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return tuple(self.token_ids[: self.num_prompt_tokens])

    @property
    def usable_drafts(self) -> tuple[int, ...]:
        """The drafts that could lead further: up to a token that would end the request, and without the last token,
        for the target says that itself."""
        drafts = self.draft_token_ids[: self.max_total_tokens - len(self.token_ids) - 1]
        if not self.stop_token_ids.isdisjoint(drafts):
            drafts = tuple(takewhile(lambda token_id: token_id not in self.stop_token_ids, drafts))
        return drafts

    def images_between(self, begin: int, end: int) -> tuple[ImageInput, ...]:
        """Those that tokens begin to end touch."""
        return tuple(image for image in self.images if image.offset < end and image.end > begin)

    def take_prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """The prompt's log probabilities, with the first output token alone."""
        return tuple(self.prompt_logprobs) if len(self.token_ids) == self.num_prompt_tokens else ()

    def append(self, sampled: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Take over sampled tokens up to the one that ends the request; what was taken, and why it ended if
        it did."""
        for count, token_id in enumerate(sampled, start=1):
            self.token_ids.append(token_id)
            if token_id in self.stop_token_ids:
                return sampled[:count], FinishReason.STOP
            if len(self.token_ids) >= self.max_total_tokens:
                return sampled[:count], FinishReason.LENGTH
        return sampled, None
