"""How a layout tells what its tensors are called: made by names_native and names_hf, used by plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkstral.checkpoint.slots import TensorClass


@dataclass(frozen=True, slots=True)
class Source:
    """A matrix or vector in the files that fills a slot, or one expert's part of it.

    `stem` plus a suffix names its tensors: wq_a + ".weight", or w1 + ".weight_packed", + ".weight_scale" …
    """

    stem: str
    expert: int | None = None  # the part of the slot that it fills; None: all of it


@dataclass(frozen=True, slots=True)
class StackedSource:
    """One tensor `stem` [E, R, K] of all experts, of whose R rows a slot takes those from `first_row` on."""

    stem: str
    num_rows: int  # R
    first_row: int = 0


@dataclass(frozen=True, slots=True)
class SkippedPrefix:
    """Tensors that this engine knows and leaves in the file."""

    prefix: str
    tensor_class: TensorClass
    reason: str


@dataclass(frozen=True, slots=True)
class Naming:
    sources: Mapping[str, tuple[Source, ...] | StackedSource]  # by the slot's name
    skipped: tuple[SkippedPrefix, ...]


ACTIVATION_SCALE_REASON = "activations stay unquantized (weights only, W4A16 or W8A16)"
NO_VISION_REASON = "--no-vision"
NO_ENCODER_REASON = "the configuration describes no vision encoder"


def skipped_vision(prefixes: Iterable[str], is_asked: bool) -> tuple[SkippedPrefix, ...]:
    """Vision's tensors, all left in the files: because it `is_asked`, or for want of a configuration."""
    reason = NO_VISION_REASON if is_asked else NO_ENCODER_REASON
    return tuple(SkippedPrefix(prefix, TensorClass.VISION, reason) for prefix in prefixes)
