"""What a checkpoint is, in numbers, from its headers: the table that `sparkstral inspect checkpoint` shows.

Plain values only, so that `dataclasses.asdict` of a summary is JSON. Must not load data or print.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparkstral.checkpoint.forms import Part
from sparkstral.checkpoint.plan import LoadPlan, UsedTensor
from sparkstral.checkpoint.slots import TensorClass
from sparkstral.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class FileSummary:
    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """All tensors of one `TensorClass`."""

    name: str
    num_tensors: int
    num_parameters: int  # weights of the model; scales are none
    num_bytes: int  # as stored
    dtypes: dict[str, int]  # bytes by dtype
    forms: list[str]  # dense, fp8, nvfp4
    skipped_reason: str | None  # None: the engine loads them


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    folder: str
    layout: str
    config_file: str
    index_file: str | None
    files: list[FileSummary]
    config: ModelConfig
    classes: list[ClassSummary]  # empty ones left out
    num_tensors: int
    num_parameters: int
    num_bytes: int  # of all tensors; the files hold their headers besides
    weights_bytes: int  # what loading takes in memory
    num_skipped_tensors: int


def summarize(plan: LoadPlan) -> CheckpointSummary:
    """The summary of a planned load (`plan_load(folder)`)."""
    classes = [summary for kind in TensorClass if (summary := _summarize_class(plan, kind)) is not None]
    return CheckpointSummary(
        folder=str(plan.files.folder),
        layout=plan.files.layout.value,
        config_file=plan.files.config_file.name,
        index_file=plan.files.index_file.name if plan.files.index_file else None,
        files=[FileSummary(path.name, num_bytes) for path, num_bytes in plan.file_bytes.items()],
        config=plan.config,
        classes=classes,
        num_tensors=sum(summary.num_tensors for summary in classes),
        num_parameters=sum(summary.num_parameters for summary in classes),
        num_bytes=sum(summary.num_bytes for summary in classes),
        weights_bytes=plan.weights_bytes,
        num_skipped_tensors=len(plan.skipped),
    )


def _summarize_class(plan: LoadPlan, kind: TensorClass) -> ClassSummary | None:
    used = [tensor for tensor in plan.used if tensor.tensor_class is kind]
    skipped = [tensor for tensor in plan.skipped if tensor.tensor_class is kind]
    entries = [*(tensor.entry for tensor in used), *(tensor.entry for tensor in skipped)]
    if not entries:
        return None
    parameters = sum(_num_parameters(tensor) for tensor in used)
    if kind is not TensorClass.ACTIVATION_SCALES:
        parameters += sum(math.prod(tensor.entry.shape) for tensor in skipped)
    dtypes: dict[str, int] = {}
    for entry in entries:
        dtypes[entry.dtype] = dtypes.get(entry.dtype, 0) + entry.num_bytes
    return ClassSummary(
        name=kind.value,
        num_tensors=len(entries),
        num_parameters=parameters,
        num_bytes=sum(dtypes.values()),
        dtypes=dtypes,
        forms=sorted({tensor.form.value for tensor in used}),
        skipped_reason=skipped[0].reason if skipped else None,
    )


def _num_parameters(tensor: UsedTensor) -> int:
    """Weights that a tensor holds: two in each byte of a packed one, none in a scale."""
    num_elements = math.prod(tensor.entry.shape)
    return {Part.WEIGHT: num_elements, Part.PACKED: 2 * num_elements}.get(tensor.part, 0)
