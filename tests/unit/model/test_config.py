from __future__ import annotations

import pytest

from sparkstral.errors import CheckpointError
from sparkstral.model import config


def test_a_constant_of_another_model_is_refused_by_name_value_and_file() -> None:
    config.expect(256, 256, "kv_lora_rank", "params.json")
    with pytest.raises(CheckpointError, match=r"params\.json: kv_lora_rank is 512, .* only 256"):
        config.expect(512, 256, "kv_lora_rank", "params.json")


def test_the_softmax_scale_is_that_of_the_head_and_not_of_the_latent() -> None:
    assert pytest.approx(0.0883883476, abs=1e-10) == config.SOFTMAX_SCALE
    assert config.LATENT_WIDTH == 320
