"""An engine with weights and latents in FP8, on the plain path: what it holds and says, and where it keeps blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparkstral.checkpoint.plan import plan_load
from sparkstral.config import EngineConfig
from sparkstral.engine import build
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.messages import FromEngine, Outputs, Shutdown, Submit
from sparkstral.types import GenerationRequest, SamplingParams
from tests.support.tiny_engine import tiny_config, write_tiny_model

GREEDY = SamplingParams(max_tokens=6, temperature=0, stop_token_ids=())
PROMPT = (1, 50, 60, 70, 80, 90, 51, 61)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return tiny_config(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def answer(config: EngineConfig, prompts: tuple[tuple[int, ...], ...]) -> dict[str, list[int]]:
    """Each prompt's tokens, asked one after the other."""
    inbox, said = Inbox(), {str(i): [] for i in range(len(prompts))}  # type: dict[str, list[int]]
    waiting = [GenerationRequest(name, prompt, GREEDY) for name, prompt in zip(said, prompts, strict=True)]

    def take(message: FromEngine) -> None:
        assert isinstance(message, Outputs)
        for output in message.outputs:
            assert output.failure is None
            said[output.request_id] += output.new_token_ids
            if output.is_last:
                inbox.put(Submit(waiting.pop(0)) if waiting else Shutdown())

    core, _ = build.build_engine(config, inbox, take, lambda *_: None)
    inbox.put(Submit(waiting.pop(0)))
    core.run()
    return said


def test_a_cached_prefix_gives_what_the_prompt_gave(stored: EngineConfig) -> None:
    """The second request reads in FP8 what the first one wrote: the same bits, so the same tokens."""
    prompt = PROMPT * 20
    said = answer(replace(stored, dense="fp8", kv="fp8"), (prompt, prompt))
    assert len(said["0"]) == 6
    assert said["0"] == said["1"]


def test_the_plan_counts_fp8_latents(stored: EngineConfig) -> None:
    load_plan = plan_load(stored.model_path)

    def pool_bytes(config: EngineConfig) -> tuple[int, int]:
        plan = build.plan_memory(config, load_plan, torch.device("cpu"), torch.float32)
        line = next(line for line in plan.lines if line.name == "KV pool")
        return line.num_bytes, plan.num_blocks

    layers, block = load_plan.config.num_hidden_layers, stored.block_size_tokens
    for config, slot_bytes in ((stored, 320 * 4), (replace(stored, kv="fp8"), 386)):
        num_bytes, num_blocks = pool_bytes(config)
        assert num_bytes == num_blocks * block * layers * slot_bytes


def test_blocks_of_another_form_are_never_read(stored: EngineConfig, tmp_path: Path) -> None:
    """Latents depend on the weights that made them, too."""
    load_plan = plan_load(stored.model_path)
    for config in (
        stored, replace(stored, kv="fp8"), replace(stored, dense="fp8"), replace(stored, dense="fp8", kv="fp8")
    ):  # fmt: skip
        build.open_block_store(replace(config, kv_dir=tmp_path), load_plan, torch.float32).close(1.0)
    assert len(list(tmp_path.iterdir())) == 4
