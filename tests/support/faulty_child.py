"""The engine process with its fault points: `sparkstral.engine.process.CHILD_MODULE` is set to this module.

A fault is asked for by the seed of a request, so that tests can ask for it through any door, and strikes in the step
in which that request samples its third token, beside whatever else is in it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from enum import IntEnum
from typing import Any

import torch

from sparkstral.engine import build
from sparkstral.engine.child import main
from sparkstral.engine.messages import decode_setup
from sparkstral.model.mistral4 import Mistral4
from sparkstral.runner.model_runner import ModelRunner
from sparkstral.structured.compiler import GrammarCompiler
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.types import ModelRunnerOutput, SchedulerOutput

HANGING_NAME = "hang_while_compiling"  # in a schema; stands in the grammar's text
COMPILE_LIMIT_S = 0.3


class Fault(IntEnum):
    """Seeds of requests."""

    FORWARD_RAISES = 9_001
    NAN_ROW = 9_002
    ALLOCATION_FAILS = 9_003
    DEVICE_LOST = 9_004
    KILLED = 9_005
    SLOW = 9_006  # each step takes 50 ms more


faults: dict[str, Fault] = {}  # by request id
num_sampled: dict[str, int] = {}
sick_rows: list[int] = []
execute, forward = ModelRunner.execute, Mistral4.forward


def execute_with_faults(self: ModelRunner, step: SchedulerOutput) -> ModelRunnerOutput:
    for new in step.new_requests:
        if new.sampling.seed in set(Fault):
            faults[new.request_id] = Fault(new.sampling.seed)
    sick_rows.clear()
    sampling = [row for row in step.scheduled if row.samples]
    for row in step.scheduled:
        if faults.get(row.request_id) is Fault.SLOW:
            time.sleep(0.05)
            break
    for i, row in enumerate(sampling):
        num_sampled[row.request_id] = num_sampled.get(row.request_id, 0) + 1
        if num_sampled[row.request_id] != 3:
            continue
        match faults.get(row.request_id):
            case Fault.FORWARD_RAISES:
                raise ValueError("a secret path: /home/someone")
            case Fault.ALLOCATION_FAILS:
                raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB.")
            case Fault.NAN_ROW:
                sick_rows.append(i)
            case Fault.DEVICE_LOST:
                self._model = LostDevice()
            case Fault.KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
    return execute(self, step)


class LostDevice:
    def forward(self, *_: Any) -> Any:
        raise torch.AcceleratorError("an illegal memory access was encountered")


def forward_with_nan(self: Mistral4, *args: Any) -> torch.Tensor:
    logits = forward(self, *args)
    logits[sick_rows, 7] = torch.nan
    return logits


def compile_or_hang(tokenizer: Any, lark: str) -> CompiledGrammar:
    if HANGING_NAME in lark:
        time.sleep(3600)
    return CompiledGrammar(tokenizer, lark)


if __name__ == "__main__":
    ModelRunner.execute = execute_with_faults  # type: ignore[method-assign]
    Mistral4.forward = forward_with_nan  # type: ignore[method-assign]
    build.CompiledGrammar = compile_or_hang  # type: ignore[assignment, misc]
    GrammarCompiler.__init__.__defaults__ = (COMPILE_LIMIT_S,)  # type: ignore[misc]
    main(decode_setup(sys.argv[1]))
