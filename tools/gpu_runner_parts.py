"""Parts of gpu_model_check that go through the engine's own loop: scheduler, fast runner, graphs, overlap.

Each takes the check's `World`, whose weights serve here too, and gives what is put into the report.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sparkstral.engine.core import EngineCore
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.messages import FromEngine, Outputs, Shutdown, Submit
from sparkstral.kv_cache.manager import KvCacheManager
from sparkstral.model.config import ModelConfig
from sparkstral.model.fast_mistral4 import FastLimits
from sparkstral.runner.compile_worker import CompileSetup, start_workers
from sparkstral.runner.fast_runner import FastRunner
from sparkstral.runner.warm_up import warm_up
from sparkstral.runner.warm_up_steps import prompt_steps
from sparkstral.scheduler.budgets import SchedulerConfig
from sparkstral.scheduler.scheduler import Scheduler
from sparkstral.structured.compiler import GrammarCompiler
from sparkstral.types import GenerationRequest, SamplingParams


def cached_variants() -> int:
    """Compiled kernels in Triton's cache."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    return sum(1 for _ in folder.glob("*/*.cubin"))


def compile_variants(config: ModelConfig, limits: FastLimits, block_size: int, limit_s: float) -> dict[str, Any]:
    """By the product's own workers, without the device."""
    begin = time.perf_counter()
    workers = start_workers(CompileSetup(config, limits, block_size, torch.cuda.get_device_capability()))
    for worker in workers:
        worker.wait(max(1.0, limit_s - (time.perf_counter() - begin)))
    return {"exit_codes": [worker.returncode for worker in workers], "cached_variants": cached_variants()}


class Loop:
    """An engine whose loop runs in this thread until its requests have ended."""

    def __init__(self, world: Any) -> None:
        setting, model = world.setting, world.fast
        self.world = world
        num_blocks = world.pool.shape[1]
        self.inbox = Inbox()
        grammars = GrammarCompiler(_no_grammar, self.inbox.wake)
        self.runner = FastRunner(model, world.pool, 0, grammars.compiled, world.config.vocab_size)
        bounds = [pair.max_tokens for pair in model.kernels.moe.many]
        steps = prompt_steps(model.limits, setting.block_size, bounds)
        before = 0 if setting.small else cached_variants()
        begin = time.perf_counter()
        self.phases: dict[str, float] = {}

        def report(progress: float, detail: str) -> None:
            self.phases[detail.split(":")[0]] = round(time.perf_counter() - begin, 2)

        warm_up(self.runner, steps[-1:] if setting.small else steps, [], report)
        # What the workers had not foreseen.
        self.num_compiled_late = 0 if setting.small else cached_variants() - before
        self.max_model_len = model.limits.max_positions
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=model.limits.max_num_seqs,
                max_num_batched_tokens=model.limits.prefill_tokens,
                max_model_len=self.max_model_len,
                vocab_size=world.config.vocab_size,
            ),
            KvCacheManager(num_blocks, setting.block_size),
        )
        self.core = EngineCore(self.scheduler, self.runner, grammars, self.inbox, self._receive)
        self.open: set[str] = set()
        self.tokens: dict[str, list[int]] = {}
        self.times: list[float] = []
        self.failures: list[str] = []
        self.num_requests = 0

    def _receive(self, message: FromEngine) -> None:
        if not isinstance(message, Outputs):
            return
        self.times.append(time.perf_counter())
        for output in message.outputs:
            self.tokens[output.request_id] += output.new_token_ids
            if output.failure is not None:
                self.failures.append(output.failure.message)
            if output.is_last:
                self.open.discard(output.request_id)
        if not self.open:
            self.inbox.put(Shutdown())

    def serve(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[list[int]]:
        """Tokens of requests that come at once; `times` is when the engine said something."""
        names = []
        for prompt, each in zip(prompts, params, strict=True):
            name = f"request {self.num_requests}"
            self.num_requests += 1
            names.append(name)
            self.tokens[name] = []
            self.open.add(name)
            self.inbox.put(Submit(GenerationRequest(name, tuple(prompt), each, cache_salt=name)))
        self.times = []
        self.core.run()
        return [self.tokens[name] for name in names]


def _no_grammar(_lark: str) -> Any:
    raise LookupError("no grammar is used here")


def _params(count: int, num_tokens: int) -> list[SamplingParams]:
    """Greedy and drawn, filtered and not."""
    greedy = SamplingParams(max_tokens=num_tokens, temperature=0.0, stop_token_ids=())
    kinds = [
        greedy,
        replace(greedy, temperature=1.0, seed=1),
        replace(greedy, temperature=0.8, seed=2, top_p=0.9),
        replace(greedy, temperature=1.2, seed=3, top_k=20, min_p=0.02),
    ]
    return [kinds[i % len(kinds)] for i in range(count)]


def check_runner(world: Any) -> dict[str, Any]:
    """The engine's answers alone and together; what warm-up took; device memory over many steps."""
    small = world.setting.small
    loop = Loop(world)
    world.loop = loop
    count, num_tokens = (2, 3) if small else (8, 40)
    longest = 10 if small else 200
    prompts = [world.random_tokens(3 + (37 * i) % longest, 900 + i) for i in range(count)]
    params = _params(count, num_tokens)
    together = loop.serve(prompts, params)
    alone = [loop.serve([prompt], [each])[0] for prompt, each in zip(prompts, params, strict=True)]
    found: dict[str, Any] = {
        "warm_up_s": loop.phases,
        "compiled_after_the_workers": loop.num_compiled_late,
        "alone_is_together": together == alone,
        "num_different": sum(a != b for a, b in zip(together, alone, strict=True)),
    }
    if not small:
        draw = random.Random(1)
        for _ in range(30):
            sizes = [draw.randrange(2, 700) for _ in range(draw.randrange(1, 9))]
            mixed = [world.random_tokens(size, draw.randrange(1 << 30)) for size in sizes]
            loop.serve(mixed, _params(len(mixed), draw.randrange(2, 30)))
        loop.serve([world.random_tokens(9, 5)], _params(1, 1000))
        growth = loop.runner.growth_since_ready()
        found["growth_of_device_memory"] = {
            "allocations": growth.num_device_allocations, "bytes": growth.reserved_bytes,
        }  # fmt: skip
        found["compiled_while_serving"] = cached_variants() - loop.num_compiled_late - world.num_variants
    return {**found, "failures": loop.failures[:3]}


def time_loop(world: Any) -> dict[str, Any]:
    """Milliseconds between tokens as the engine's loop gives them, graphs and overlap included."""
    loop: Loop = world.loop
    found: dict[str, Any] = {}
    for size in world.setting.decode_sizes:
        num_tokens = 4 if world.setting.small else 200
        greedy = SamplingParams(max_tokens=num_tokens, temperature=0.0, stop_token_ids=())
        prompts = [world.random_tokens(20, i) for i in range(size)]
        loop.serve(prompts, [greedy] * size)
        steps = [b - a for a, b in zip(loop.times, loop.times[1:], strict=False)]
        found[str(size)] = {"ms": statistics.median(steps) * 1e3, "steps": len(steps)}
    if not world.setting.small:
        found["no overlap, 1"] = _without_overlap(loop, world)
    return found


def _without_overlap(loop: Loop, world: Any) -> dict[str, float]:
    plan_ahead: Callable[[], Any] = loop.scheduler.schedule_ahead
    loop.scheduler.schedule_ahead = lambda: None  # type: ignore[method-assign]
    try:
        greedy = SamplingParams(max_tokens=200, temperature=0.0, stop_token_ids=())
        loop.serve([world.random_tokens(20, 0)], [greedy])
        steps = [b - a for a, b in zip(loop.times, loop.times[1:], strict=False)]
        return {"ms": statistics.median(steps) * 1e3}
    finally:
        loop.scheduler.schedule_ahead = plan_ahead  # type: ignore[method-assign]
