"""A case: one piece of work of one kernel, how it is prepared, what it moves, and how its result is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparkstral.bench.timing import Call

MAX_ERROR_RATIO = 2.0  # of ours to plain bfloat16 PyTorch's, both against float64, root mean square
# Of the factor that best maps exact results to ours, from 1. Rounding errors cancel in it, a wrong factor does not: a
# result that is 1 % too large may be within twice the error of plain bfloat16. Half a unit in bfloat16's last place.
MAX_BIAS = 2**-9
NUM_WORST = 3


@dataclass(frozen=True, slots=True)
class Prepared:
    """`calls` do equal work on rotated inputs, so that no cache serves them; the figures are of one call."""

    calls: Sequence[Call]
    num_bytes: float = 0
    num_tensor_flops: float = 0  # on matrix units
    num_launches: int = 1
    check: Callable[[], dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    operation: str  # the folder in kernels/, or another word for what is no kernel of ours
    name: str
    prepare: Callable[[int], Prepared]  # of the bytes that the rotated inputs should exceed; 0: one input will do
    variant: str = "shipped"

    @property
    def title(self) -> str:
        return f"{self.operation}: {self.name}" + ("" if self.variant == "shipped" else f" ({self.variant})")


def compare(ours: Tensor, plain: Tensor, exact: Tensor) -> dict[str, Any]:
    """Errors against `exact` (float64) of ours and of plain bfloat16 PyTorch, relative to exact's root mean square,
    and where ours is worst."""
    scale = exact.square().mean().sqrt()
    ours_error, plain_error = ours.double() - exact, plain.double() - exact
    ours_rms, plain_rms = (float(error.square().mean().sqrt() / scale) for error in (ours_error, plain_error))
    worst = ours_error.abs().nan_to_num(nan=float("inf")).flatten().topk(min(NUM_WORST, exact.numel())).indices
    return {
        "finite": bool(ours.isfinite().all()),
        "error_rms": ours_rms,
        "plain_error_rms": plain_rms,
        "error_ratio": ours_rms / plain_rms if plain_rms else 0.0 if ours_rms == 0 else float("inf"),
        "bias": float((ours.double() * exact).sum() / exact.square().sum()) - 1,
        "error_max": float(ours_error.abs().max() / scale),
        "plain_error_max": float(plain_error.abs().max() / scale),
        "worst": [
            {
                "index": [int(i) for i in torch.unravel_index(at, exact.shape)],
                "got": float(ours.flatten()[at]),
                "expected": float(exact.flatten()[at]),
            }
            for at in worst
        ],
    }


def worse(*found: dict[str, Any]) -> dict[str, Any]:
    """Of several comparisons the one that is least good, so that a small part's errors do not drown."""
    return max(found, key=lambda each: (len(faults(each)), each["error_ratio"]))


def faults(found: dict[str, Any]) -> list[str]:
    """Why a checked result is not good: whatever is not finite, too far off, or a property that does not hold."""
    reasons = []
    if found.get("finite") is False:
        reasons.append("not finite")
    ratio = found.get("error_ratio", 0.0)
    if not ratio <= MAX_ERROR_RATIO:
        reasons.append(f"error {ratio:.3g} times that of plain bfloat16; {MAX_ERROR_RATIO:g} is allowed")
    bias = found.get("bias", 0.0)
    if not abs(bias) <= MAX_BIAS:
        reasons.append(f"results are {1 + bias:.4f} times what they should be")
    reasons += [name.replace("_", " ") for name, value in found.items() if name.startswith("wrong_") and value]
    reasons += [f"not: {name.replace('_', ' ')}" for name, value in found.get("holds", {}).items() if not value]
    return reasons
