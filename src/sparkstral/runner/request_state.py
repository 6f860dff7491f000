"""What a runner remembers of a request from step to step: what its next sample depends on, beside its logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkstral.sampling.sampler import derive_seed
from sparkstral.structured.matcher import CompiledGrammar, GrammarError, GrammarMatcher
from sparkstral.types import Failure, GrammarSpec, NewRequest, SamplingParams, SchedulerOutput


@dataclass(slots=True)
class RequestState:
    params: SamplingParams
    seed: int
    num_output_tokens: int
    matcher: GrammarMatcher | None
    prompt_token_ids: tuple[int, ...]  # where the parameters look at them, else nothing
    output_token_ids: list[int]  # that the host has seen


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


def grammar_failure(error: GrammarError) -> Failure:
    return Failure("grammar", f"The output could not be constrained any further: {error}")
