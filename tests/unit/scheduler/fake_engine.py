"""A model without tensors, driven by the real scheduler: the next token is a function of the whole token
history.

The history is read back from the blocks, as a kernel would: what a step writes goes to its slots, and what it
reads comes through the block table. A wrong block, a stale one or a skipped token changes the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType

from sparkstral.kv_cache.invariants import check
from sparkstral.kv_cache.manager import KvCacheManager
from sparkstral.kv_cache.prefix_index import Digest, digest_256
from sparkstral.scheduler.budgets import SchedulerConfig
from sparkstral.scheduler.drafting import Controller
from sparkstral.scheduler.scheduler import Scheduler
from sparkstral.speculative.rejection import accepted
from sparkstral.types import (
    UNSEEN,
    Failure,
    GenerationRequest,
    ModelRunnerOutput,
    SamplingParams,
    ScheduledRequest,
    SchedulerOutput,
    TokenOutput,
)

VOCAB_SIZE = 50
POISON = -1  # what a row writes whose failure is known in the same step: nobody ever reads it
SILENT_POISON = -2  # what a row writes whose failure shows only in later logits, its own or another's
NAN = Failure("numerics", "The logits are not finite.")


def next_token(history: tuple[int, ...]) -> int:
    digest = blake2b(repr(history).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


def uninterrupted(request: GenerationRequest, max_model_len: int) -> tuple[int, ...]:
    """What the request gets when it is alone in the world."""
    history = request.prompt_token_ids
    output: list[int] = []
    while True:
        output.append(next_token(history + tuple(output)))
        total = len(history) + len(output)
        if (
            output[-1] in request.sampling.stop_token_ids
            or len(output) == request.sampling.max_tokens
            or total == max_model_len
        ):
            return tuple(output)


def good_guess(history: tuple[int, ...], count: int) -> tuple[int, ...]:
    """What comes next, as long as the history's length is no multiple of 5; then something else."""
    guesses: list[int] = []
    for _ in range(count):
        token = next_token((*history, *guesses))
        guesses.append(token if (len(history) + len(guesses)) % 5 else (token + 1) % VOCAB_SIZE)
    return tuple(guesses)


def make_request(
    request_id: str,
    prompt: Iterable[int],
    max_tokens: int = 8,
    stop_token_ids: tuple[int, ...] = (),
    cache_salt: str = "",
    priority: int = 0,
) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=stop_token_ids)
    return GenerationRequest(request_id, tuple(prompt), sampling, cache_salt=cache_salt, priority=priority)


@dataclass
class FakeEngine:
    """Scheduler, cache and fake model, with the record of everything that came out. `step` checks the
    invariants."""

    num_blocks: int = 64
    block_size_tokens: int = 4
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    max_model_len: int = 64
    digest: Digest = digest_256
    outputs: dict[str, list[TokenOutput]] = field(default_factory=dict)
    known_to_runner: dict[str, tuple[int, ...]] = field(default_factory=dict)
    salts: dict[str, str] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    controller: Controller | None = None
    guess: Callable[[tuple[int, ...], int], tuple[int, ...]] = lambda history, count: ()

    def __post_init__(self) -> None:
        self.cache = KvCacheManager(self.num_blocks, self.block_size_tokens, self.digest)
        config = SchedulerConfig(
            self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len, VOCAB_SIZE
        )
        self.scheduler = Scheduler(config, self.cache, self.controller)
        self.slots: list[tuple[str, int] | None] = [None] * (self.num_blocks * self.block_size_tokens)
        self.num_computed_by_step: list[dict[str, int]] = []
        self.last_sampled: Mapping[str, tuple[int, ...]] = {}

    def add(self, request: GenerationRequest) -> TokenOutput | None:
        refusal = self.scheduler.add(request)
        if refusal is None:
            self.salts[request.request_id] = request.cache_salt
        return refusal

    def abort(self, request_id: str) -> TokenOutput | None:
        return self._record(self.scheduler.abort(request_id))

    def step(self, failures: Mapping[str, Failure] = MappingProxyType({})) -> SchedulerOutput:
        plan = self.scheduler.schedule()
        check(self.cache)
        result = self.execute(plan, failures)
        self.finish(plan, result)
        return plan

    def finish(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        for output in self.scheduler.update(plan, result):
            self._record(output)
        check(self.cache)

    def run(self, max_steps: int = 1000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"work is left after {max_steps} steps")

    def execute(
        self,
        plan: SchedulerOutput,
        failures: Mapping[str, Failure] = MappingProxyType({}),
        silently_sick: Container[str] = (),
    ) -> ModelRunnerOutput:
        """Write the rows of the step, then read. Rows that fail or are sick write poison."""
        assert plan.num_scheduled_tokens <= self.max_num_batched_tokens
        for request_id in plan.finished_request_ids:
            self.known_to_runner.pop(request_id, None)
        for new in plan.new_requests:
            self.known_to_runner[new.request_id] = new.output_token_ids
        written: set[int] = set()
        # A row of a step that was planned ahead, whose token never came: it ended meanwhile, and computes in vain.
        in_vain = {
            row.request_id
            for row in plan.scheduled
            if row.token_ids == (UNSEEN,) and row.request_id not in self.last_sampled
        }
        for row in plan.scheduled:
            assert row.request_id in self.known_to_runner
            assert row.token_ids
            for position, token_id in enumerate(row.token_ids, start=row.num_computed_tokens):
                slot = self._slot(row.block_ids, position)
                assert slot >= self.block_size_tokens, "the null block is nobody's"
                assert slot not in written, "two rows write one slot"
                written.add(slot)
                if row.request_id in failures or row.request_id in in_vain:
                    token_id = POISON
                elif row.request_id in silently_sick:
                    token_id = SILENT_POISON
                elif token_id == UNSEEN:
                    (token_id,) = self.last_sampled[row.request_id]
                self.slots[slot] = (self.salts[row.request_id], token_id)
        sampled: dict[str, tuple[int, ...]] = {}
        drafts: dict[str, tuple[int, ...]] = {}
        failures = dict(failures)
        for row in plan.scheduled:
            if row.samples and row.request_id not in failures and row.request_id not in in_vain:
                history = self._history(row)
                known = history[: len(history) - row.num_drafts]
                guessed = row.token_ids[len(row.token_ids) - row.num_drafts :]
                # A sick row finds it out where its own tokens are read back; drafts were not sick when they were made.
                choices: list[int | Failure] = [NAN] if SILENT_POISON in known else [
                    next_token((*known, *guessed[:i])) for i in range(row.num_drafts + 1)
                ]
                taken = accepted(guessed, choices)
                if isinstance(taken, Failure):
                    failures[row.request_id] = taken
                else:
                    sampled[row.request_id] = taken
                    drafts[row.request_id] = self.guess((*known, *taken), row.num_wanted_drafts)
        self.num_computed_by_step.append({row.request_id: len(row.token_ids) for row in plan.scheduled})
        self.last_sampled = sampled
        return ModelRunnerOutput(sampled, failures, drafts=drafts)

    def _history(self, row: ScheduledRequest) -> tuple[int, ...]:
        """What a kernel reads through the row's block table."""
        history = []
        for position in range(row.num_computed_tokens + len(row.token_ids)):
            content = self.slots[self._slot(row.block_ids, position)]
            assert content is not None, "a slot was read that nobody wrote"
            salt, token_id = content
            assert salt == self.salts[row.request_id], "a slot was read that another user wrote"
            assert token_id != POISON, "a slot was read that a failed row wrote"
            history.append(token_id)
        return tuple(history)

    def tokens(self, request_id: str) -> tuple[int, ...]:
        return tuple(t for output in self.outputs[request_id] for t in output.new_token_ids)

    def last(self, request_id: str) -> TokenOutput:
        return self.outputs[request_id][-1]

    def num_computed_tokens(self, request_id: str) -> int:
        """Tokens that the model computed for this request, all steps together."""
        return sum(step.get(request_id, 0) for step in self.num_computed_by_step)

    def _slot(self, block_ids: tuple[int, ...], position: int) -> int:
        return (
            block_ids[position // self.block_size_tokens] * self.block_size_tokens
            + position % self.block_size_tokens
        )

    def _record(self, output: TokenOutput | None) -> TokenOutput | None:
        if output is not None:
            history = self.outputs.setdefault(output.request_id, [])
            assert not any(earlier.is_last for earlier in history), f"{output.request_id} ended twice"
            history.append(output)
            if output.is_last:
                self.ends.append(output.request_id)
        return output
