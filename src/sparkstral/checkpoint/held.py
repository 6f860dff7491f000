"""What each class of the weights takes as the engine holds it: lines of the memory plan, from shapes and forms alone.

Owns the sums over the model's slots; the forms are those that the headers show, or those of the release where only a
configuration is at hand. Must not know devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sparkstral.checkpoint.forms import Form, Part, part_shapes
from sparkstral.checkpoint.slots import Slot, TensorClass, list_slots
from sparkstral.memory.holding import BYTES_PER_VALUE, ROW_SCALE_BYTES, Holding
from sparkstral.memory.lines import PlanLine
from sparkstral.model.config import KV_LORA_RANK, QK_NOPE_HEAD_DIM, V_HEAD_DIM, ModelConfig

_EXPERTS = (TensorClass.ROUTED_EXPERTS, TensorClass.SHARED_EXPERTS)
_DENSE = (TensorClass.ATTENTION, TensorClass.HEAD)  # what --dense is about
KEPT_IN_BF16 = "kv_b_proj"  # but for this, which prompts expand with; w_uk and w_uv are its rows in FP8
_PART_BYTES = {Part.WEIGHT: 1, Part.PACKED: 1, Part.SCALE: 1, Part.GLOBAL_SCALE: 4}  # in FP8 and NVFP4
_FP8_SCALE_BYTES = 4
_GAP_BYTES_A_LAYER = 6 << 20  # of a layer of the real model about 4 MiB by its sizes; not measured yet

Forms = Mapping[str, Form]  # by slot


def released_forms(config: ModelConfig) -> dict[str, Form]:
    """Those of the NVFP4 release: the experts in NVFP4, everything else dense."""
    return {
        slot.name: Form.NVFP4 if slot.tensor_class in _EXPERTS else Form.DENSE for slot in list_slots(config)
    }


def held_lines(config: ModelConfig, forms: Forms, holding: Holding, source: str) -> tuple[PlanLine, ...]:
    """A line for each class, as the kernels read them: experts as stored, the rest in bfloat16 or FP8, and kv_b_proj
    once more, cut for the absorbed form of attention. `source` says where the forms are from."""
    sizes: dict[TensorClass, int] = {}
    for slot in list_slots(config):
        sizes[slot.tensor_class] = sizes.get(slot.tensor_class, 0) + _held_bytes(slot, forms[slot.name], holding)
    lines = [
        PlanLine(kind.value, num_bytes, f"{_shown_form(config, forms, kind, holding)}, {source}")
        for kind, num_bytes in sizes.items()
    ]
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    rows = layers * heads * (QK_NOPE_HEAD_DIM + V_HEAD_DIM)
    cut = rows * KV_LORA_RANK * BYTES_PER_VALUE[holding.dense]
    if holding.dense == "fp8":
        cut += rows * ROW_SCALE_BYTES
    lines.append(PlanLine("w_uk, w_uv", cut, "kv_b_proj once more, cut for the absorbed form of attention"))
    gaps = PlanLine(
        "allocator gaps", layers * _GAP_BYTES_A_LAYER, "allowance: PyTorch takes memory in pieces of 2 and 20 MiB"
    )
    return (*lines, *holding.beside_lines(), gaps)


def decoded_lines(config: ModelConfig, dtype_bytes: int, dtype: str) -> tuple[PlanLine, ...]:
    """The same for plain PyTorch, which holds every parameter in one dtype, the router in float32."""
    sizes: dict[TensorClass, int] = {}
    for slot in list_slots(config):
        width = 4 if slot.tensor_class is TensorClass.ROUTERS else dtype_bytes
        sizes[slot.tensor_class] = sizes.get(slot.tensor_class, 0) + math.prod(slot.shape) * width
    return tuple(
        PlanLine(kind.value, num_bytes, f"decoded to {'float32' if kind is TensorClass.ROUTERS else dtype}")
        for kind, num_bytes in sizes.items()
    )


def _held_bytes(slot: Slot, form: Form, holding: Holding) -> int:
    if slot.tensor_class in _EXPERTS:
        return stored_bytes(slot.shape, form)
    num_values = math.prod(slot.shape)
    is_matrix = len(slot.shape) > 1 and not slot.name.endswith(KEPT_IN_BF16)
    if slot.tensor_class in _DENSE and is_matrix and holding.dense == "fp8":
        return num_values * BYTES_PER_VALUE["fp8"] + math.prod(slot.shape[:-1]) * ROW_SCALE_BYTES
    return num_values * BYTES_PER_VALUE["bf16"]


def stored_bytes(shape: tuple[int, ...], form: Form, dense_bytes: int = 2) -> int:
    """A matrix or vector in a file of this form."""
    if form is Form.DENSE:
        return math.prod(shape) * dense_bytes
    width = dict(_PART_BYTES)
    if form is Form.FP8:
        width[Part.SCALE] = _FP8_SCALE_BYTES
    return sum(math.prod(sizes) * width[part] for part, sizes in part_shapes(form, shape).items())


def _shown_form(config: ModelConfig, forms: Forms, kind: TensorClass, holding: Holding) -> str:
    if kind in _EXPERTS:
        found = {forms[slot.name].value for slot in list_slots(config) if slot.tensor_class is kind}
        return f"as stored ({', '.join(sorted(found))})"
    return f"in {holding.dense}" if kind in _DENSE else "in bf16"
