from __future__ import annotations

import pytest

from sparkstral.model import config


def test_the_softmax_scale_is_that_of_the_head_and_not_of_the_latent() -> None:
    assert pytest.approx(0.0883883476, abs=1e-10) == config.SOFTMAX_SCALE
    assert config.LATENT_WIDTH == 320
