"""Which bytes of which file go where: from headers alone, so that faults are told before data is read.

Owns the check that every tensor is used or named as skipped and every slot filled, in shape and dtype. Must
not know the names of a layout (names_native, names_hf) and must not read data (stream).
"""

from __future__ import annotations

import difflib
import gc
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sparkstral.checkpoint.forms import (
    DENSE_DTYPES,
    MODULE_SUFFIXES,
    NVFP4_GROUP,
    NVFP4_INPUT_SCALE,
    PART_DTYPES,
    STACKED_SUFFIXES,
    Form,
    Part,
    StoredMatrix,
    is_scalar_part,
    part_shapes,
    recognize,
)
from sparkstral.checkpoint.index import DTYPE_BYTES, CheckpointIndex, TensorEntry, read_index
from sparkstral.checkpoint.locate import CheckpointFiles, Layout, list_names, locate
from sparkstral.checkpoint.names_hf import hf_naming, read_hf_config
from sparkstral.checkpoint.names_native import native_naming, read_params
from sparkstral.checkpoint.naming import ACTIVATION_SCALE_REASON, Naming, Source, StackedSource
from sparkstral.checkpoint.slots import Slot, TensorClass, list_slots
from sparkstral.checkpoint.spans import Buffer, Span
from sparkstral.checkpoint.stacking import stack_experts
from sparkstral.errors import CheckpointError
from sparkstral.model.config import ModelConfig

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class UsedTensor:
    entry: TensorEntry
    tensor_class: TensorClass
    form: Form
    part: Part


@dataclass(frozen=True, slots=True)
class SkippedTensor:
    entry: TensorEntry
    tensor_class: TensorClass
    reason: str


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Everything about a load but the data."""

    files: CheckpointFiles
    config: ModelConfig
    forms: Mapping[str, Form]  # by slot
    buffers: tuple[Buffer, ...]
    spans: tuple[Span, ...]  # in the order of files and offsets: each file is read once, forwards
    used: tuple[UsedTensor, ...]
    skipped: tuple[SkippedTensor, ...]
    file_bytes: Mapping[Path, int]

    @property
    def weights_bytes(self) -> int:
        """What the weights take in memory."""
        return sum(buffer.num_bytes for buffer in self.buffers)


def plan_load(folder: Path, with_vision: bool = True, with_input_scales: bool = False) -> LoadPlan:
    """Find the checkpoint in `folder`, read its configuration and headers, and plan its load; the vision encoder stays
    in the files unless `with_vision`, and the scales of what routed experts in NVFP4 read unless `with_input_scales`.

    Raises `CheckpointError`, naming file and remedy, for whatever would keep the model from being whole.
    """
    files = locate(folder)
    with _paused_collector():
        if files.layout is Layout.NATIVE:
            config = read_params(files.config_file)
            config = config if with_vision else replace(config, vision=None)
            index = read_index(files)
            naming = native_naming(config, not with_vision)
        else:
            config = read_hf_config(files.config_file)
            config = config if with_vision else replace(config, vision=None)
            index = read_index(files)
            naming = hf_naming(config, index, not with_vision)
        return _Planner(files, config, index, naming, with_input_scales).plan()


@contextmanager
def _paused_collector() -> Iterator[None]:
    """While 56,000 tensors' entries come to be, and none goes, the garbage collector would look at all of them again
    and again: 1.6 s for the released headers instead of 1.1 (2026-12-02, one core of an EPYC)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Planner:
    """Gathers the plan slot by slot; what is missing is collected, so that one error can tell all of it."""

    def __init__(
        self,
        files: CheckpointFiles,
        config: ModelConfig,
        index: CheckpointIndex,
        naming: Naming,
        with_input_scales: bool,
    ) -> None:
        self._files = files
        self._config = config
        self._index = index
        self._naming = naming
        self._with_input_scales = with_input_scales
        self._forms: dict[str, Form] = {}
        self._buffers: list[Buffer] = []
        self._spans: list[Span] = []
        self._used: dict[str, UsedTensor] = {}
        self._skipped: dict[str, SkippedTensor] = {}
        self._missing: dict[str, None] = {}  # an ordered set: gate and up may miss one and the same tensor

    def plan(self) -> LoadPlan:
        slots = list_slots(self._config)
        for slot in slots:
            source = self._naming.sources[slot.name]
            if isinstance(source, StackedSource):
                self._fill_from_stack(slot, source)
            else:
                self._fill_from_matrices(slot, source)
        self._skip_by_prefix()
        self._refuse_unknown()
        self._refuse_missing()
        self._refuse_mixed_experts(slots)
        buffers, spans = stack_experts(
            self._config.num_hidden_layers, self._forms, self._buffers, self._spans
        )
        return LoadPlan(
            files=self._files,
            config=self._config,
            forms=self._forms,
            buffers=tuple(buffers),
            spans=tuple(sorted(spans, key=lambda span: (span.tensor.file.name, span.offset))),
            used=tuple(self._used.values()),
            skipped=tuple(self._skipped.values()),
            file_bytes=self._index.file_bytes,
        )

    def _fill_from_matrices(self, slot: Slot, sources: tuple[Source, ...]) -> None:
        scaled = self._has_input_scale(slot)
        matrices = [recognize(source.stem, MODULE_SUFFIXES, self._index.tensors, scaled) for source in sources]
        taken = [self._take(slot, matrix) for matrix in matrices]
        entries = [parts for parts in taken if parts is not None]
        if len(entries) < len(sources):
            return  # _refuse_missing tells it
        form = matrices[0].form
        for matrix, source in zip(matrices, sources, strict=True):
            if matrix.form is not form:
                raise self._mixed_forms(sources[0].stem, form, source.stem, matrix.form)
        buffers = self._allocate(slot, form, entries[0])
        shapes = part_shapes(form, slot.shape if sources[0].expert is None else slot.shape[1:], scaled)
        for parts, source in zip(entries, sources, strict=True):
            for part, entry in parts.items():
                self._check_dtype(entry, form, buffers[part])
                self._check_shape(entry, shapes[part], is_scalar_part(form, part))
                first_element = (source.expert or 0) * math.prod(shapes[part])
                self._spans.append(Span(entry, entry.offset, entry.num_bytes, buffers[part], first_element))

    def _fill_from_stack(self, slot: Slot, source: StackedSource) -> None:
        matrix = recognize(source.stem, STACKED_SUFFIXES, self._index.tensors)
        entries = self._take(slot, matrix)
        if entries is None:
            return
        buffers = self._allocate(slot, matrix.form, entries)
        num_experts, num_rows, num_columns = slot.shape
        for part, entry in entries.items():
            self._check_dtype(entry, matrix.form, buffers[part])
            if is_scalar_part(matrix.form, part):
                self._check_shape(entry, (num_experts,), True)
                self._spans.append(Span(entry, entry.offset, entry.num_bytes, buffers[part], 0))
                continue
            self._check_shape(entry, (num_experts, source.num_rows, num_columns), False)
            row_bytes = num_columns * DTYPE_BYTES[entry.dtype]
            for expert in range(num_experts):
                offset = entry.offset + (expert * source.num_rows + source.first_row) * row_bytes
                first_element = expert * num_rows * num_columns
                self._spans.append(Span(entry, offset, num_rows * row_bytes, buffers[part], first_element))

    def _has_input_scale(self, slot: Slot) -> bool:
        return self._with_input_scales and slot.tensor_class is TensorClass.ROUTED_EXPERTS

    def _take(self, slot: Slot, matrix: StoredMatrix) -> dict[Part, TensorEntry] | None:
        """Mark the matrix's tensors as used and give them, or note those that are missing and give None."""
        for name in matrix.activation_scale_names:
            entry = self._index.tensors[name]
            self._skipped[name] = SkippedTensor(entry, TensorClass.ACTIVATION_SCALES, ACTIVATION_SCALE_REASON)
        found: dict[Part, TensorEntry] = {}
        for part, name in matrix.part_names.items():
            if name not in self._index.tensors:
                self._missing[name] = None
                continue
            found[part] = self._index.tensors[name]
            self._used[name] = UsedTensor(found[part], slot.tensor_class, matrix.form, part)
        return found if len(found) == len(matrix.part_names) else None

    def _allocate(self, slot: Slot, form: Form, example: Mapping[Part, TensorEntry]) -> dict[Part, Buffer]:
        """The buffers of a slot; a dense one has the dtype of its (first) tensor."""
        config_file = self._files.config_file
        if form is not Form.DENSE and not slot.may_be_quantized:
            entry = example[Part.PACKED if form is Form.NVFP4 else Part.WEIGHT]
            raise CheckpointError(
                f"{entry.file}: tensor {entry.name} is stored as {form} ({entry.dtype}), and this engine "
                f"computes it only in {' or '.join(DENSE_DTYPES)}. Use a checkpoint that leaves "
                f"{slot.tensor_class} unquantized."
            )
        if form is Form.NVFP4 and slot.shape[-1] % NVFP4_GROUP:
            raise CheckpointError(
                f"{config_file}: {slot.name} has {slot.shape[-1]} columns, and NVFP4 has one scale for "
                f"{NVFP4_GROUP}. Use sizes that are multiples of it."
            )
        buffers = {}
        for part, shape in part_shapes(form, slot.shape, self._has_input_scale(slot)).items():
            allowed = PART_DTYPES[form, part]
            dtype = (
                example[part].dtype if form is Form.DENSE and example[part].dtype in allowed else allowed[0]
            )
            buffers[part] = Buffer(slot.name, form, part, dtype, shape)
        self._forms[slot.name] = form
        self._buffers.extend(buffers.values())
        return buffers

    def _check_dtype(self, entry: TensorEntry, form: Form, buffer: Buffer) -> None:
        allowed = (
            (buffer.dtype,)
            if form is Form.DENSE and entry.dtype in DENSE_DTYPES
            else PART_DTYPES[form, buffer.part]
        )
        if entry.dtype not in allowed:
            raise CheckpointError(
                f"{entry.file}: tensor {entry.name} has dtype {entry.dtype}, expected "
                f"{' or '.join(allowed)}. This engine reads BF16 or F32, FP8 with one scale a matrix, and "
                "NVFP4 of compressed-tensors; use such a checkpoint."
            )

    def _check_shape(self, entry: TensorEntry, expected: tuple[int, ...], scalar: bool) -> None:
        """Scalar parts may be spelled [], [1] or [E, 1, 1]: only their ones may differ."""
        found = tuple(size for size in entry.shape if size != 1) if scalar else entry.shape
        if found != (tuple(size for size in expected if size != 1) if scalar else expected):
            raise CheckpointError(
                f"{entry.file}: tensor {entry.name} has shape {list(entry.shape)}, expected {list(expected)} "
                f"by the sizes in {self._files.config_file.name}. Take weights and "
                f"{self._files.config_file.name} from the same repository and revision."
            )

    def _skip_by_prefix(self) -> None:
        for skipped in self._naming.skipped:
            for name, entry in self._index.tensors.items():
                if name.startswith(skipped.prefix):
                    self._skipped[name] = SkippedTensor(entry, skipped.tensor_class, skipped.reason)

    def _refuse_unknown(self) -> None:
        unknown = [
            name for name in self._index.tensors if name not in self._used and name not in self._skipped
        ]
        if not unknown:
            return
        entry = self._index.tensors[unknown[0]]
        nearest = _nearest_name(entry.name, [*self._used, *self._missing])
        raise CheckpointError(
            f"{entry.file}: tensor {entry.name} ({entry.dtype} {list(entry.shape)}) has no place in the "
            f"model that {self._files.config_file.name} describes; the nearest name that has one is "
            f"{nearest}. {len(unknown)} of {len(self._index.tensors)} tensors are unknown. Take weights and "
            f"{self._files.config_file.name} from the same repository; adapters and other architectures are "
            "not supported."
        )

    def _refuse_missing(self) -> None:
        if self._missing and all(name.endswith(NVFP4_INPUT_SCALE) for name in self._missing):
            raise CheckpointError(
                f"{self._files.folder}: {len(self._missing)} matrices have no {NVFP4_INPUT_SCALE[1:]}, which "
                "activations in NVFP4 take. Leave --prefill w4a4 out."
            )
        if self._missing:
            where = self._files.index_file or self._files.folder
            raise CheckpointError(
                f"{where}: {len(self._missing)} tensors that the model needs are in no weight file: "
                f"{list_names(self._missing)}. Download the checkpoint again, whole and from one revision"
                f"{', or serve its text model alone (--no-vision)' if self._lacks_only_vision() else ''}."
            )

    def _lacks_only_vision(self) -> bool:
        of_vision = {
            source.stem + MODULE_SUFFIXES.weight
            for slot, sources in self._naming.sources.items()
            if slot.startswith("vision.") and not isinstance(sources, StackedSource)
            for source in sources
        }
        return of_vision.issuperset(self._missing)

    def _refuse_mixed_experts(self, slots: list[Slot]) -> None:
        """gate, up and down of one set of experts must have one form: kernels compute them together."""
        first: dict[str, Slot] = {}
        for slot in slots:
            if slot.tensor_class in (TensorClass.ROUTED_EXPERTS, TensorClass.SHARED_EXPERTS):
                other = first.setdefault(slot.name.rpartition(".")[0], slot)
                if self._forms[slot.name] is not self._forms[other.name]:
                    raise self._mixed_forms(
                        self._stem(other), self._forms[other.name], self._stem(slot), self._forms[slot.name]
                    )

    def _stem(self, slot: Slot) -> str:
        source = self._naming.sources[slot.name]
        return source.stem if isinstance(source, StackedSource) else source[0].stem

    def _mixed_forms(self, stem: str, form: Form, other_stem: str, other_form: Form) -> CheckpointError:
        return CheckpointError(
            f"{self._files.folder}: the experts of one layer must all be stored in one form, but {stem} is "
            f"{form} and {other_stem} is {other_form}. Use a checkpoint that quantizes all experts of a "
            "layer alike."
        )


def _nearest_name(name: str, known: list[str]) -> str:
    """The known name most like `name`: one that differs only in its numbers if there is one."""
    alike = [other for other in known if _NUMBER.sub("#", other) == _NUMBER.sub("#", name)]
    return difflib.get_close_matches(name, alike or known, n=1, cutoff=0.0)[0]
