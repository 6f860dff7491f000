"""What is compiled for a kernel: enough to build it on a machine without a GPU.

Each operation's `triton_kernel.specs` lists the variants that it launches under a configuration; the compile gate
of the tests builds them all for the devices that are served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One variant of one Triton function."""

    name: str
    function: Any  # a triton.JITFunction
    signature: Mapping[str, str]  # of the arguments that are no constants: "*bf16", "i32", ...
    constants: Mapping[str, int | bool | float]
    num_warps: int
    num_stages: int = 1
    needs: tuple[str, ...] = field(default=())  # instructions that must be in the PTX

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}
