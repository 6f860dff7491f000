"""The ways to run a model that `sparkstral eval` knows by name. Standard library only: the commands list them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sparkstral.types import Precision

MSCALE_SQUARED = (0.1 * math.log(128) + 1) ** 2  # 2.2058: YaRN's factor for a context 128 times as long


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run the model."""

    dense: Precision = "bf16"
    kv: Precision = "bf16"
    scale_ratio: float = 1.0  # of the softmax scale to 128^-0.5

    @property
    def is_of_engine(self) -> bool:
        """Whether `serve` has flags for it."""
        return self.scale_ratio == 1.0


STORED = "stored"
SETTINGS: Mapping[str, Setting] = {
    STORED: Setting(),
    "dense-fp8": Setting(dense="fp8"),
    "kv-fp8": Setting(kv="fp8"),
    "fp8": Setting(dense="fp8", kv="fp8"),
    "scaled-softmax": Setting(scale_ratio=MSCALE_SQUARED),
}
LEFT_OUT = {"w4a4": "the engine has no products of FP4 activations"}
