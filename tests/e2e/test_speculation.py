"""The demo answers with drafts as it does without: real weights, tools, schemas, several requests at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkstral.config import EngineConfig
from sparkstral.demo.location import DEMO_CHECKPOINT
from sparkstral.engine import build
from tests.support.drafts import FixedDepth
from tools.speculation_check import Engine, demo_requests, waves


def test_the_demo_answers_the_same_with_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(
        DEMO_CHECKPOINT, device="cpu", max_num_seqs=8, kv_memory_bytes=64 << 20, max_model_len=1024, speculative="off"
    )
    monkeypatch.setattr(build, "DepthController", lambda _: FixedDepth(5))  # whatever the clock says
    requests = [
        replace(request, sampling=replace(request.sampling, max_tokens=24))
        for _, request in demo_requests(20, seed=3, max_prompt_tokens=400)
    ]
    assert len(requests) == 20
    assert sum(request.grammar is not None for request in requests) >= 4
    plain, drafting = Engine(config), Engine(replace(config, speculative="prompt-lookup"))
    for wave in waves(requests, (1, 5, 8, 6)):
        plain.serve(wave)
        drafting.serve(wave)
    assert drafting.answers == plain.answers
    assert drafting.stats.num_accepted_tokens > 10
    assert drafting.stats.step < plain.stats.step
