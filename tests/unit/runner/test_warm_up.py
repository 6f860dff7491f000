"""What is done before ready: which steps, in which order, and what is said when a phase does not end."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sparkstral.errors import SparkstralError
from sparkstral.kernels.configs import KernelConfigs
from sparkstral.model.fast_mistral4 import FastLimits
from sparkstral.runner import held as held_module
from sparkstral.runner import warm_up as warm_up_module
from sparkstral.runner.compile_worker import CompileSetup
from sparkstral.runner.warm_up import warm_up
from sparkstral.runner.warm_up_steps import NULL_BLOCK, prompt_steps
from sparkstral.units import MiB
from tests.support.fast_context_model import FastContextModel
from tests.unit.memory.test_plan import REAL
from tests.unit.runner.test_fast_runner import make_fast_runner

REPOSITORY = Path(__file__).parents[3]
LIMITS = FastLimits(max_num_seqs=32, max_positions=40_000, prefill_keys=16_384, prefill_tokens=8_192, moe_tokens=4_096)


class FirstPassOnly(FastContextModel):
    """Counts tokens and reads nothing: warm-up requests have no context."""

    def hidden(self, batch, latent_pool):
        self.num_tokens_per_pass.append(len(batch.input_ids))
        rows = len(batch.input_ids) if batch.logits_rows is None else len(batch.logits_rows)
        return latent_pool.new_zeros(rows, 320)


def shapes(limits: FastLimits) -> list[list[tuple[int, int]]]:
    steps = prompt_steps(limits, 64, [3072])
    assert all(set(request.block_ids) == {NULL_BLOCK} for step in steps for request in step)
    return [
        [(len(request.token_ids), request.num_computed_tokens + len(request.token_ids)) for request in step]
        for step in steps
    ]


def test_the_steps_reach_every_form_within_the_limits():
    found = shapes(LIMITS)
    totals = {sum(queries for queries, _ in step) for step in found}
    assert {2, 3, 5, 9, 17, 33, 65, 3073, 8192} <= totals
    assert max(totals) == 8192
    assert all(seq_len <= 40_000 for step in found for _, seq_len in step)
    assert [(256, 256)] * 32 in found  # all rows of logits
    assert [(16, 32_769)] in found  # three pieces
    assert [(1, 64)] * 17 + [(2, 2)] in found
    assert [(3, 64), (2, 2)] in found


def test_small_limits_are_kept():
    limits = FastLimits(max_num_seqs=4, max_positions=50, prefill_keys=64, prefill_tokens=30, moe_tokens=30)
    found = shapes(limits)
    assert all(sum(queries for queries, _ in step) <= 30 and len(step) <= 4 for step in found)
    assert all(seq_len <= 50 for step in found for _, seq_len in step)
    assert [(30, 30)] in found
    alone = shapes(FastLimits(max_num_seqs=2, max_positions=20, prefill_keys=64, prefill_tokens=30, moe_tokens=30))
    assert [(19, 19)] in alone


def test_everything_is_run_once_and_the_runner_is_ready():
    model = FirstPassOnly()
    runner = make_fast_runner(model)
    steps = prompt_steps(model.limits, 4, [])
    said: list[tuple[float, str]] = []
    warm_up(runner, steps, [], lambda progress, detail: said.append((progress, detail)))
    num_prompt_tokens = [sum(len(request.token_ids) for request in step) for step in steps]
    assert model.num_tokens_per_pass == [*num_prompt_tokens, *reversed(runner.graphs.sizes)]
    assert runner.growth_since_ready().reserved_bytes == 0
    phases = [detail.split(":")[0] for _, detail in said]
    assert list(dict.fromkeys(phases)) == ["compiling kernels", "first launches", "capturing graphs"]
    assert said[-1][0] == 1


class FakeAllocator:
    """PyTorch's allocator on a GPU that is not there: it holds 1,000 MiB before, and steps take `peak` beside them."""

    def __init__(self, peak: int) -> None:
        self._peak = peak
        self.taken: list[int] = []
        self.uint8 = None
        self.cuda = self

    def synchronize(self, device: object) -> None: ...

    def empty_cache(self) -> None: ...

    def reset_peak_memory_stats(self, device: object) -> None: ...

    def memory_allocated(self, device: object) -> int:
        return 1000 * MiB

    def max_memory_allocated(self, device: object) -> int:
        return 1000 * MiB + self._peak

    def memory_reserved(self, device: object) -> int:
        return 1000 * MiB

    def empty(self, num_bytes: int, **_: object) -> None:
        self.taken.append(num_bytes)


@pytest.mark.parametrize(("peak", "held", "is_told"), [(100 * MiB, 400 * MiB, False), (400 * MiB, 596 * MiB, True)])
def test_steps_with_prompts_get_what_is_planned_or_what_they_need(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, peak: int, held: int, is_told: bool
) -> None:
    allocator: Any = FakeAllocator(peak)
    monkeypatch.setattr(warm_up_module, "torch", allocator)
    monkeypatch.setattr(held_module, "torch", allocator)
    runs: list[None] = []
    warm_up_module.reserve_memory(lambda: runs.append(None), torch.device("cuda"), planned_bytes=1400 * MiB)
    assert len(runs) == 2
    assert sum(allocator.taken) == held
    assert ("steps with prompts need" in caplog.text) is is_told


def test_a_phase_that_does_not_end_is_named_and_its_processes_are_ended():
    hanging = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with pytest.raises(SparkstralError, match="'compiling kernels' was given up after 0 s, at 0 of 1"):
        warm_up(make_fast_runner(FirstPassOnly()), [], [hanging], lambda progress, detail: None, limit_s=0.0)
    assert hanging.wait(10) != 0


def test_a_worker_compiles_its_share_into_the_cache(tmp_path: Path):
    """A fortieth of the real model's variants, for GB10, on this CPU."""
    setup = CompileSetup(REAL, LIMITS, 64, (12, 1), KernelConfigs.shipped((12, 1)), 0, 40)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    text = base64.b64encode(pickle.dumps(setup)).decode()
    command = [sys.executable, "-W", "ignore", "-m", "sparkstral.runner.compile_worker", text]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.glob("*/*.cubin"))


def test_serving_launches_no_variant_that_the_warm_up_has_not():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in [*sys.path, str(REPOSITORY)] if path)
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.launched_variants"]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stdout
