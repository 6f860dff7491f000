"""The one list of what is verified, measured and tuned: every kernel at the sizes of the real model.

`Case.variant` names what is not as serving does it.
"""

from dataclasses import replace

from sparkstral.bench.cases.attention import decode_cases, prefill_cases
from sparkstral.bench.cases.case import Case, Prepared, faults
from sparkstral.bench.cases.dense import around_cases, linear_cases
from sparkstral.bench.cases.draws import sampling_cases
from sparkstral.bench.cases.embedding import embed_cases
from sparkstral.bench.cases.experts import expert_cases
from sparkstral.bench.cases.layer import layer_cases
from sparkstral.bench.cases.library import library_cases
from sparkstral.bench.cases.setting import Setting
from sparkstral.bench.cases.vision import vision_cases

__all__ = ["Case", "Prepared", "Setting", "all_cases", "faults", "kernel_cases"]


def kernel_cases(s: Setting) -> list[Case]:
    """What is of a kernel of ours: all of them have a check."""
    makers = (
        expert_cases, decode_cases, linear_cases, around_cases, embed_cases, prefill_cases, sampling_cases,
        vision_cases,
    )  # fmt: skip
    return [case for make in makers for case in make(s)]


def all_cases(s: Setting) -> list[Case]:
    """Also what is only timed: layers in a row, and PyTorch's products."""
    return [*kernel_cases(s), *layer_cases(s), *_without_pdl(s), *library_cases(s)]


def _without_pdl(s: Setting) -> list[Case]:
    """What programmatic dependent launch gains: a few rows without it."""
    if not s.pdl:
        return []
    without = replace(s, pdl=False)
    cases = [*layer_cases(without), *expert_cases(without)]
    titles = {f"moe_experts: block, {n} tokens" for n in (1, 8, 32)}
    return [
        replace(case, variant="no pdl")
        for case in cases
        if case.title in titles or (case.operation == "layer" and case.name.endswith("x 300"))
    ]
