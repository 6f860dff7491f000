"""Programmatic dependent launch: the next kernel of the stream starts while this one still runs.

A kernel that is launched with `launch_pdl` begins as soon as every program of its predecessor has announced it,
so that its launch, its reads of weights and of the step's lengths cost no time of their own. The rule that makes
this safe: before it touches anything that an earlier kernel of the step wrote or still reads, EVERY program calls
`wait_for_inputs`, which returns when the predecessor has ended and its writes are visible. As the predecessor did
the same, all kernels before it have ended too. Source: PTX ISA, griddepcontrol; SM 9.0 and newer.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """Announce that this program has started; the next kernel's programs take what room is left on the device."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Return when all earlier kernels have ended and their writes are visible."""
    if PDL:
        gdc_wait()
