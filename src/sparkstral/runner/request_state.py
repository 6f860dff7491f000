"""What a runner remembers of a request from step to step: what its next sample depends on, beside its logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparkstral.sampling.processors import History
from sparkstral.sampling.sampler import SamplingRow, derive_seed
from sparkstral.structured.matcher import CompiledGrammar, GrammarError, GrammarMatcher
from sparkstral.types import (
    Failure,
    GrammarSpec,
    NewRequest,
    SamplingParams,
    ScheduledRequest,
    SchedulerOutput,
)


@dataclass(slots=True)
class RequestState:
    params: SamplingParams
    seed: int
    num_output_tokens: int
    matcher: GrammarMatcher | None
    prompt_token_ids: tuple[int, ...]  # where the parameters look at them, else nothing
    output_token_ids: list[int]  # that the host has seen

    def append(self, token_ids: Sequence[int]) -> None:
        """Go on by sampled tokens. Raises `GrammarError` if the grammar does not allow them."""
        self.num_output_tokens += len(token_ids)
        self.output_token_ids += token_ids
        self.advance(token_ids)

    def advance(self, token_ids: Sequence[int]) -> None:
        """The same of the grammar alone."""
        if self.matcher is not None:
            for token_id in token_ids:
                if token_id not in self.params.stop_token_ids:
                    self.matcher.advance(token_id)


class RequestStates:
    """Those of all requests that are running. A request without a seed gets one from `base_seed` and its id;
    `compiled_grammar` finds the grammar of a request that is scheduled."""

    def __init__(self, base_seed: int, compiled_grammar: Callable[[GrammarSpec], CompiledGrammar]) -> None:
        self._base_seed = base_seed
        self._compiled_grammar = compiled_grammar
        self._states: dict[str, RequestState] = {}

    def begin_step(self, step: SchedulerOutput) -> dict[str, Failure]:
        """Forget who has finished, learn who is new; failures of those that cannot go on."""
        for request_id in step.finished_request_ids:
            self._states.pop(request_id, None)
        failures: dict[str, Failure] = {}
        for new_request in step.new_requests:
            try:
                self._states[new_request.request_id] = self._begin(new_request)
            except GrammarError as error:  # its own grammar refuses what it said before a preemption
                failures[new_request.request_id] = grammar_failure(error)
        return failures

    def __getitem__(self, request_id: str) -> RequestState:
        return self._states[request_id]

    def get(self, request_id: str) -> RequestState | None:
        return self._states.get(request_id)

    def _begin(self, request: NewRequest) -> RequestState:
        matcher = None
        if request.grammar is not None:
            matcher = self._compiled_grammar(request.grammar).matcher(request.output_token_ids)
        seed = request.sampling.seed
        if seed is None:
            seed = derive_seed(self._base_seed, request.request_id)
        output = list(request.output_token_ids)
        return RequestState(request.sampling, seed, len(output), matcher, request.prompt_token_ids, output)


def drafts_of(request: ScheduledRequest) -> tuple[int, ...]:
    return request.token_ids[len(request.token_ids) - request.num_drafts :]


def sampling_rows(state: RequestState, drafts: Sequence[int]) -> list[tuple[SamplingRow, History]]:
    """How the token behind each beginning of `drafts` is chosen, the empty one first: as if those drafts were tokens.
    It ends before a draft that the grammar does not allow. Raises `GrammarError` if there is no way on at all."""
    masks = None if state.matcher is None else state.matcher.along(drafts)
    made = []
    for i in range(len(drafts) + 1 if masks is None else len(masks)):
        position = state.num_output_tokens + i
        row = SamplingRow(state.params.at(position), state.seed, position, None if masks is None else masks[i])
        output = [*state.output_token_ids, *drafts[:i]] if i else state.output_token_ids
        made.append((row, History(state.params, state.prompt_token_ids, output)))
    return made


def grammar_failure(error: GrammarError) -> Failure:
    return Failure("grammar", f"The output could not be constrained any further: {error}")
