"""What a plan needs to know of a model: constants, forms and sizes, from a configuration alone or from headers.

Owns the sources in their order of certainty: headers of weight files say all; a params.json says the constants, and
the forms are then taken for those of the NVFP4 release. The released params.json is part of the package, so that the
real model can be planned with nothing at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkstral.checkpoint.config_file import Section, read_json_object
from sparkstral.checkpoint.forms import Form
from sparkstral.checkpoint.held import released_forms, stored_bytes
from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID
from sparkstral.checkpoint.names_native import read_params
from sparkstral.checkpoint.plan import LoadPlan, SkippedTensor, UsedTensor, plan_load
from sparkstral.checkpoint.slots import TensorClass, list_slots
from sparkstral.memory.holding import VisionTower
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
    vision: VisionTower | None
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
    block = read_json_object(path).get("vision_encoder")
    source = PARAMS_FILE
    vision = None
    if isinstance(block, dict):
        num_parameters = _vision_parameters(Section(path, block, "vision_encoder"), config.hidden_size)
        vision = VisionTower(2 * num_parameters, f"{num_parameters:,} weights in bf16, {source}")
    sizes: dict[TensorClass, int] = {}
    for slot in list_slots(config):
        sizes[slot.tensor_class] = sizes.get(slot.tensor_class, 0) + stored_bytes(slot.shape, forms[slot.name])
    if vision is not None:
        sizes[TensorClass.VISION] = vision.num_bytes
    return ModelFacts(name, source, config, forms, vision, _stored_lines(sizes, source))


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
    vision_bytes = sizes.get(TensorClass.VISION)
    vision = None if vision_bytes is None else VisionTower(vision_bytes, f"as stored, {source}")
    return ModelFacts(name, source, load_plan.config, load_plan.forms, vision, _stored_lines(sizes, source))


def _stored_lines(sizes: Mapping[TensorClass, int], source: str) -> tuple[PlanLine, ...]:
    return tuple(PlanLine(kind.value, sizes[kind], f"as stored, {source}") for kind in TensorClass if kind in sizes)


def _vision_parameters(block: Section, text_hidden: int) -> int:
    """Of the tower and the projector. Source: docs/model.md 1.2 and 2.4."""
    hidden, inner = block.integer("hidden_size"), block.integer("intermediate_size")
    patch = block.integer("num_channels") * block.integer("patch_size") ** 2
    layer = 4 * hidden * hidden + 3 * hidden * inner + 2 * hidden
    norms = 2 * hidden  # before the layers, and before the projector
    merger = block.integer("spatial_merge_size") ** 2 * hidden * hidden
    adapter = hidden * text_hidden + text_hidden * text_hidden
    return hidden * patch + block.integer("num_hidden_layers") * layer + norms + merger + adapter
