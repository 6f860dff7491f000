"""An engine whose model runs through the kernels, in the interpreter, says what the plain engine says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstral.checkpoint import load as checkpoint_load
from sparkstral.checkpoint.plan import plan_load
from sparkstral.config import EngineConfig
from sparkstral.engine import build, build_fast
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.messages import FromEngine, Outputs, Shutdown, Submit
from sparkstral.errors import ConfigError
from sparkstral.types import EnginePhase, GenerationRequest, SamplingParams, TokenLogprob
from tests.support.fast_model import small_configs, with_stacks
from tests.support.tiny_checkpoint import write_native
from tests.support.tiny_engine import tiny_config, write_tiny_model

GREEDY = SamplingParams(max_tokens=5, temperature=0, stop_token_ids=())
RANDOM = replace(GREEDY, temperature=1.0, seed=3, top_p=0.9)
MORE = replace(
    RANDOM, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.2, logit_bias=((77, 1.5),),
    num_logprobs=4, num_prompt_logprobs=2, max_tokens=3,
)  # fmt: skip
REQUESTS = (
    GenerationRequest("a", (1, 50, 60, 70, 80), GREEDY),
    GenerationRequest("b", (1, 99), RANDOM),
    GenerationRequest("c", (1, 44, 45, 44), MORE),
)


Phases = list[tuple[EnginePhase, str]]


def answers(config: EngineConfig) -> tuple[dict[str, list[int]], list[TokenLogprob], Phases]:
    """What is said to REQUESTS, all log probabilities, and the phases that were reported."""
    inbox, phases, logprobs = Inbox(), [], []

    def report(phase: EnginePhase, progress: float = 0.0, detail: str = "") -> None:
        phases.append((phase, detail))

    said: dict[str, list[int]] = {request.request_id: [] for request in REQUESTS}
    left = set(said)

    def take(message: FromEngine) -> None:
        assert isinstance(message, Outputs)
        for output in message.outputs:
            assert output.failure is None
            said[output.request_id] += output.new_token_ids
            logprobs.extend((*output.prompt_logprobs, *output.logprobs))
            if output.is_last:
                left.discard(output.request_id)
        if not left:
            inbox.put(Shutdown())

    core, _ = build.build_engine(config, inbox, take, report)
    for request in REQUESTS:
        inbox.put(Submit(request))
    core.run()
    return said, logprobs, phases


def test_it_says_what_the_plain_engine_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(
        tiny_config(write_tiny_model(tmp_path)),
        max_num_seqs=3,
        max_num_batched_tokens=24,
        max_model_len=64,
        speculative="off",
    )
    expected, expected_logprobs, _ = answers(config)

    def load_stacked(*arguments: Any) -> Any:
        model_config, weights = checkpoint_load.load_planned(*arguments)
        return model_config, with_stacks(weights)

    steps = build_fast.prompt_steps
    monkeypatch.setattr(build, "select_kernels", lambda choice, device: small_configs())
    monkeypatch.setattr(build, "load_planned", load_stacked)
    monkeypatch.setattr(build_fast.FastParts, "start_compiling", lambda self, max_model_len: None)
    monkeypatch.setattr(build_fast, "prompt_steps", lambda *arguments: steps(*arguments)[-1:])
    said, logprobs, phases = answers(config)
    assert said == expected
    assert len(logprobs) == len(expected_logprobs) == 3 + 3
    for ours, theirs in zip(logprobs, expected_logprobs, strict=True):
        assert ours.token_id == theirs.token_id  # the models round differently, at 1e-2
        assert ours.logprob == pytest.approx(theirs.logprob, abs=0.03)
        assert [p for _, p in ours.top] == pytest.approx([p for _, p in theirs.top], abs=0.03)
    assert {phase for phase, _ in phases} == {EnginePhase.LOADING, EnginePhase.WARMING_UP}
    assert phases[-1][1].startswith("capturing graphs")


@pytest.mark.parametrize(
    ("experts", "max_num_seqs", "said"), [("bf16", 4, "--kernels reference"), ("nvfp4", 129, "Set it to 128 or less")]
)
def test_what_the_kernels_do_not_serve_is_said_before_loading(
    tmp_path: Path, experts: Any, max_num_seqs: int, said: str
) -> None:
    folder = write_native(tmp_path, experts=experts)
    config = EngineConfig(folder, max_num_seqs=max_num_seqs)
    with pytest.raises(ConfigError, match=said):
        build_fast.FastParts(
            config, plan_load(folder), small_configs(), build.choose_device("cpu"), build.torch.float32
        )
