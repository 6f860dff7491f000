"""The one list of what is verified, measured and tuned: every kernel at the sizes of the real model."""

from sparkstral.bench.cases.attention import decode_cases, prefill_cases
from sparkstral.bench.cases.case import Case, Prepared, faults
from sparkstral.bench.cases.dense import around_cases, library_cases, linear_cases
from sparkstral.bench.cases.draws import sampling_cases
from sparkstral.bench.cases.experts import expert_cases
from sparkstral.bench.cases.layer import layer_cases
from sparkstral.bench.cases.setting import Setting

__all__ = ["Case", "Prepared", "Setting", "all_cases", "faults", "kernel_cases"]


def kernel_cases(s: Setting) -> list[Case]:
    """What is of a kernel of ours: all of them have a check."""
    makers = (expert_cases, decode_cases, linear_cases, around_cases, prefill_cases, sampling_cases)
    return [case for make in makers for case in make(s)]


def all_cases(s: Setting) -> list[Case]:
    """Also what is only timed: layers in a row, and PyTorch's products."""
    return [*kernel_cases(s), *layer_cases(s), *library_cases(s)]
