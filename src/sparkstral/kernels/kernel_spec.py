"""What is compiled for a kernel: enough to build it on a machine without a GPU.

Each operation's `triton_kernel.specs` lists the variants that it launches under a configuration; the compile gate
of the tests builds them all for the devices that are served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_STAGES = 3  # Triton's, of a launch that names none


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One variant of one Triton function."""

    name: str
    function: Any  # a triton.JITFunction
    signature: Mapping[str, str]  # of what is no constant: "*bf16", "i32", "i32:16" (multiples of 16), ...
    constants: Mapping[str, int | bool | float]
    num_warps: int
    num_stages: int = 1
    max_registers: int | None = None  # of a thread; None: as many as the compiler likes
    needs: tuple[str, ...] = field(default=())  # instructions that must be in the PTX

    @property
    def options(self) -> dict[str, int]:
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options if self.max_registers is None else {**options, "maxnreg": self.max_registers}

    def launch(self, grid: tuple[int, ...], *arguments: Any, pdl: bool) -> None:
        """Run the variant on the current stream."""
        self.function[grid](*arguments, **self.constants, **self.options, launch_pdl=pdl)
