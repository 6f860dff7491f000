"""A whole step loop for tests: real scheduler, cache books, runner and grammars over `ContextModel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sparkstral.engine.core import EngineCore
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.messages import FromEngine, Outputs, Shutdown, Submit, ToEngine
from sparkstral.kv_cache.manager import KvCacheManager
from sparkstral.runner.model_runner import ModelRunner
from sparkstral.scheduler.budgets import SchedulerConfig
from sparkstral.scheduler.scheduler import Scheduler
from sparkstral.structured.compiler import GrammarCompiler
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.structured.vocabulary import Vocabulary, build_grammar_tokenizer
from sparkstral.types import (
    UNSEEN,
    EngineStats,
    GenerationRequest,
    GrammarSpec,
    ModelRunnerOutput,
    SamplingParams,
    SchedulerOutput,
    TokenOutput,
)
from tests.support.context_model import VOCAB_SIZE, ContextModel, make_pool
from tests.support.drafts import FixedDepth, InformedProposer

BYTES = Vocabulary(tuple(bytes([i]) for i in range(256)), num_special_tokens=40, pattern=r"\s+|\S+")
TOKENIZER = build_grammar_tokenizer(BYTES, VOCAB_SIZE)
BLOCK_SIZE = 4


def request(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 8,
    temperature: float = 0.0,
    stop: tuple[int, ...] = (),
    grammar: str | None = None,
) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, stop_token_ids=stop)
    spec = None if grammar is None else GrammarSpec(grammar)
    return GenerationRequest(request_id, tuple(prompt), params, spec)


class AheadRunner:
    """A runner that overlaps: like a device, it computes steps in the order in which they are submitted, and a token
    that was not seen when its step was planned is what the step before sampled."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._last: Mapping[str, tuple[int, ...]] = {}
        self.num_ahead = 0  # steps that were submitted before the last one was collected
        self._num_open = 0

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        return self.collect(self.submit(step))

    def submit(self, step: SchedulerOutput) -> ModelRunnerOutput:
        assert self._num_open < 2
        rows = tuple(
            replace(row, token_ids=self._last.get(row.request_id, (0,))) if row.token_ids == (UNSEEN,) else row
            for row in step.scheduled
        )
        result = self._runner.execute(replace(step, scheduled=rows))
        self._last = result.sampled
        self.num_ahead += self._num_open
        self._num_open += 1
        return result

    def collect(self, pending: ModelRunnerOutput) -> ModelRunnerOutput:
        self._num_open -= 1
        return pending


class Engine:
    """A core whose loop runs in the test's thread until all of its requests have ended."""

    def __init__(
        self,
        num_blocks: int = 64,
        max_num_batched_tokens: int = 64,
        model: ContextModel | None = None,
        build: Callable[[str], CompiledGrammar] = lambda lark: CompiledGrammar(TOKENIZER, lark),
        overlaps: bool = False,
        depth: int = 0,
    ) -> None:
        """With a `depth`, drafts of an `InformedProposer` up to it."""
        self.inbox = Inbox()
        self.model = model or ContextModel()
        self.num_usable_blocks = num_blocks - 1
        limit = (num_blocks - 1) * BLOCK_SIZE
        scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=8,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=limit,
                vocab_size=VOCAB_SIZE,
            ),
            KvCacheManager(num_blocks, BLOCK_SIZE),
            FixedDepth(depth) if depth else None,
        )
        grammars = GrammarCompiler(build, self.inbox.wake)
        proposer = InformedProposer() if depth else None
        runner = ModelRunner(self.model, make_pool(num_blocks, BLOCK_SIZE), 0, grammars.compiled, proposer)
        self.ahead = AheadRunner(runner) if overlaps else None
        self.core = EngineCore(scheduler, self.ahead or runner, grammars, self.inbox, self._receive)
        self.open: set[str] = set()
        self.outputs: dict[str, list[TokenOutput]] = {}
        self.stats: list[EngineStats] = []
        self.on_outputs: Callable[[Outputs], None] = lambda _: None

    def _receive(self, message: FromEngine) -> None:
        assert isinstance(message, Outputs)
        self.stats.append(message.stats)
        for output in message.outputs:
            assert output.request_id in self.open, f"{output.request_id} had its last output before"
            self.outputs.setdefault(output.request_id, []).append(output)
            if output.is_last:
                self.open.remove(output.request_id)
        self.on_outputs(message)
        if not self.open:
            self.inbox.put(Shutdown())

    def put(self, *messages: ToEngine) -> None:
        for message in messages:
            if isinstance(message, Submit):
                self.open.add(message.request.request_id)
            self.inbox.put(message)

    def serve(self, *requests: GenerationRequest) -> dict[str, list[int]]:
        """The token ids of each request."""
        self.put(*(Submit(r) for r in requests))
        self.core.run()
        return {r.request_id: self.tokens(r.request_id) for r in requests}

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.new_token_ids]

    def last(self, request_id: str) -> TokenOutput:
        return self.outputs[request_id][-1]

    def assert_all_blocks_are_free(self) -> None:
        """Nothing runs, and what is not free is only kept for reuse, which counts as free."""
        while self.core._submitted is not None:  # what was in flight when the loop ended
            self.core._step()
        stats = self.core._scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.num_free_blocks == self.num_usable_blocks
