"""Before ready: every kernel variant compiled and launched, the memory of prompts reserved, every graph captured.

Owns the phases, their order and their time limits. Compiling is done by other processes (compile_worker), which were
started before the weights were loaded; here it is only waited for.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from sparkstral.errors import SparkstralError
from sparkstral.runner.fast_runner import FastRunner
from sparkstral.runner.held import reserved_bytes
from sparkstral.types import NewRequest, SamplingParams, ScheduledRequest, SchedulerOutput
from sparkstral.units import MiB, format_bytes

logger = logging.getLogger(__name__)

# A whole start is to take a minute; a phase that takes ten is broken, and a supervisor should know.
PHASE_LIMIT_S = 600.0
# Kept by PyTorch's allocator for steps with prompts, beyond what the largest took: differing sizes leave gaps.
RESERVE_SHARE = 0.25
SMALL_RESERVE_BYTES = 32 * MiB  # of tensors up to 1 MiB, which the allocator keeps apart
_PARAMS = SamplingParams(max_tokens=1, temperature=1.0, stop_token_ids=(), top_p=0.9, top_k=40)
_MOST = replace(  # all kinds of what a request can ask for
    _PARAMS, repetition_penalty=1.1, logit_bias=((0, 1.0),), num_logprobs=0, num_prompt_logprobs=0
)


class ReportProgress(Protocol):
    def __call__(self, progress: float, detail: str) -> None: ...


class _Phase:
    """A part of the warm-up with a name, its progress and its limit."""

    def __init__(self, name: str, report: ReportProgress, limit_s: float) -> None:
        self._name = name
        self._report = report
        self._limit_s = limit_s
        self._begin = time.monotonic()

    def step(self, done: int, total: int) -> None:
        """Say how far it is. Raises SparkstralError if it takes too long."""
        elapsed_s = time.monotonic() - self._begin
        if elapsed_s > self._limit_s:
            raise SparkstralError(
                f"The warm-up's phase '{self._name}' was given up after {elapsed_s:.0f} s, at {done} of {total}; the "
                f"limit is {self._limit_s:.0f} s. See the log for what hangs; a second start finds what was compiled."
            )
        self._report(done / max(1, total), f"{self._name}: {done} of {total}")
        if done == total:
            logger.info("warm-up: %s, %.1f s", self._name, elapsed_s)


def warm_up(
    runner: FastRunner,
    steps: Sequence[tuple[ScheduledRequest, ...]],
    compilers: Sequence[subprocess.Popen[bytes]],
    report: ReportProgress,
    limit_s: float = PHASE_LIMIT_S,
    planned_bytes: int = 0,
) -> None:
    """Make `runner` ready: after this nothing is compiled, captured or allocated. `steps` are those of warm_up_steps,
    `planned_bytes` is what the plan allows them beside their workspaces.

    Raises SparkstralError naming the phase that took longer than `limit_s`."""
    begin_bytes = reserved_bytes(runner.device)
    _wait_for(compilers, _Phase("compiling kernels", report, limit_s))
    phase = _Phase("first launches", report, limit_s)
    sizes = sorted(runner.graphs.sizes, reverse=True)
    total = len(steps) + len(sizes)
    if runner.encoder is not None:
        runner.encoder.encode_largest()
    for done, step in enumerate(steps):
        phase.step(done, total)
        _run(runner, done, step)
    for done, size in enumerate(sizes, len(steps)):
        phase.step(done, total)
        with torch.inference_mode():
            runner.graphs.run_eagerly(size)
    phase.step(total, total)
    phase = _Phase("capturing graphs", report, limit_s)
    before_bytes = reserved_bytes(runner.device)
    for done, size in enumerate(sizes):
        phase.step(done, len(sizes))
        with torch.inference_mode():
            runner.graphs.capture(size)
    phase.step(len(sizes), len(sizes))
    runner.graph_bytes = reserved_bytes(runner.device) - before_bytes

    def run_steps() -> None:
        if runner.encoder is not None:
            runner.encoder.encode_largest()
        for number, step in enumerate(steps):
            _run(runner, number, step)

    reserve_memory(run_steps, runner.device, begin_bytes + runner.graph_bytes + planned_bytes)
    runner.mark_ready()


def _wait_for(compilers: Sequence[subprocess.Popen[bytes]], phase: _Phase) -> None:
    try:
        while True:
            done = sum(compiler.poll() is not None for compiler in compilers)
            phase.step(done, len(compilers))
            if done == len(compilers):
                break
            time.sleep(0.1)
    finally:
        for compiler in compilers:
            if compiler.poll() is None:
                compiler.kill()
    failed = [compiler.returncode for compiler in compilers if compiler.returncode]
    if failed:
        logger.warning("%d of %d compilers failed; the engine compiles what they left", len(failed), len(compilers))


def _run(runner: FastRunner, number: int, step: Sequence[ScheduledRequest]) -> None:
    """The first step, which is the largest, asks for the most, every token of its prompts explained."""
    new = tuple(
        NewRequest(request.request_id, _PARAMS, None, ())
        if number
        else NewRequest(request.request_id, _MOST, None, (), (*request.token_ids, 0))
        for request in step
    )
    runner.execute(SchedulerOutput(number, tuple(step), new))
    runner.execute(SchedulerOutput(number, (), (), tuple(request.request_id for request in step)))


def reserve_memory(run_steps: Callable[[], object], device: torch.device, planned_bytes: int) -> None:
    """Let PyTorch's allocator take at once what steps with prompts need, in one piece, which it cuts and joins again.

    `run_steps` runs the largest of them; `planned_bytes` is what the allocator may hold in all, and will, unless they
    need more. Nothing else may have freed memory that it still holds."""
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run_steps()
    torch.cuda.synchronize(device)
    taken = torch.cuda.max_memory_allocated(device) - before
    needed_bytes, room_bytes = int(taken * (1 + RESERVE_SHARE)) + 64 * MiB, planned_bytes - reserved_bytes(device)
    if needed_bytes + SMALL_RESERVE_BYTES > room_bytes:
        shown = format_bytes(needed_bytes + SMALL_RESERVE_BYTES), format_bytes(max(0, room_bytes))
        logger.warning("steps with prompts need %s, and the plan has %s for them", *shown)
    whole = torch.empty(max(needed_bytes, room_bytes - SMALL_RESERVE_BYTES), dtype=torch.uint8, device=device)
    small = [torch.empty(MiB, dtype=torch.uint8, device=device) for _ in range(SMALL_RESERVE_BYTES // MiB)]
    del whole, small
    run_steps()
    torch.cuda.synchronize(device)
    logger.info("prompts take up to %s beside their workspaces", format_bytes(taken))
