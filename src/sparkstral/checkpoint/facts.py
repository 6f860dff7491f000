"""What a plan needs to know of a model: constants, forms and sizes, from a configuration alone or from headers.

Owns the sources in their order of certainty: headers of weight files say all; a params.json says the constants, and
the forms are then taken for those of the NVFP4 release. The released params.json is part of the package, so that the
real model can be planned with nothing at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkstral.checkpoint.forms import Form
from sparkstral.checkpoint.held import released_forms, stored_bytes
from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID
from sparkstral.checkpoint.names_native import read_params
from sparkstral.checkpoint.plan import LoadPlan, SkippedTensor, UsedTensor, plan_load
from sparkstral.checkpoint.slots import TensorClass, list_slots
from sparkstral.memory.lines import PlanLine
from sparkstral.model.config import ModelConfig

PARAMS_FILE = "params.json"
RELEASED_PARAMS = Path(__file__).with_name("mistral_small_4_nvfp4.json")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    name: str
    source: str  # where sizes and forms are from, for the lines of a plan: headers, or params.json
    config: ModelConfig
    forms: Mapping[str, Form]  # by slot
    stored: tuple[PlanLine, ...]  # the tensors of the files, by class

    @property
    def stored_bytes(self) -> int:
        return sum(line.num_bytes for line in self.stored)


def released_model() -> ModelFacts:
    """Mistral Small 4 in NVFP4, from the params.json that this package brings."""
    return facts_of_params(RELEASED_PARAMS, EXAMPLE_HUB_ID)


def facts_of_params(path: Path, name: str) -> ModelFacts:
    """From a params.json without weights. Raises CheckpointError as `read_params` does."""
    config = read_params(path)
    forms = released_forms(config)
    source = PARAMS_FILE
    sizes: dict[TensorClass, int] = {}
    for slot in list_slots(config):
        sizes[slot.tensor_class] = sizes.get(slot.tensor_class, 0) + stored_bytes(slot.shape, forms[slot.name])
    return ModelFacts(name, source, config, forms, _stored_lines(sizes, source))


def facts_of_folder(folder: Path, name: str) -> ModelFacts:
    """From the headers in a checkpoint's folder, or from its params.json where there are no weights yet.

    Raises CheckpointError, naming file and remedy."""
    if (folder / PARAMS_FILE).is_file() and not any(folder.glob("*.safetensors*")):
        return facts_of_params(folder / PARAMS_FILE, name)
    return facts_of_load(plan_load(folder), name)


def facts_of_load(load_plan: LoadPlan, name: str) -> ModelFacts:
    source = "headers"
    sizes: dict[TensorClass, int] = {}
    tensors: list[UsedTensor | SkippedTensor] = [*load_plan.used, *load_plan.skipped]
    for tensor in tensors:
        sizes[tensor.tensor_class] = sizes.get(tensor.tensor_class, 0) + tensor.entry.num_bytes
    return ModelFacts(name, source, load_plan.config, load_plan.forms, _stored_lines(sizes, source))


def _stored_lines(sizes: Mapping[TensorClass, int], source: str) -> tuple[PlanLine, ...]:
    return tuple(PlanLine(kind.value, sizes[kind], f"as stored, {source}") for kind in TensorClass if kind in sizes)

