"""Settings that no machine and no model could serve are refused before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkstral.config import EngineConfig
from sparkstral.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs is 0; it must be at least 1"),
        ({"max_num_seqs": 16, "max_num_batched_tokens": 16}, "--max-num-batched-tokens to 17"),
        ({"max_model_len": 1}, "--max-model-len is 1; it must be at least 2"),
    ],
)
def test_limits_that_do_not_go_together_are_refused(settings: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        EngineConfig(Path(), **settings)


def test_limits_that_just_go_together_are_taken() -> None:
    assert EngineConfig(Path(), max_num_seqs=16, max_num_batched_tokens=17, max_model_len=2)


@pytest.mark.parametrize("max_draft_tokens", [0, 8])
def test_drafts_are_as_many_as_a_decode_step_s_attention_takes(max_draft_tokens: int):
    with pytest.raises(ConfigError, match="must be 1 to 7"):
        EngineConfig(Path("model"), max_draft_tokens=max_draft_tokens)
