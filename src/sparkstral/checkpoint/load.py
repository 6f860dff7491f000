"""A checkpoint's folder becomes `ModelConfig` and `ModelWeights`.

Owns the allocation and the assembly; must not know names (plan) or how bytes are read (stream).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from sparkstral.checkpoint.forms import Form, Part, is_scalar_part
from sparkstral.checkpoint.plan import Buffer, LoadPlan, plan_load
from sparkstral.checkpoint.stream import TORCH_DTYPES, LoadProgress, fill
from sparkstral.errors import CheckpointError
from sparkstral.model.config import ModelConfig
from sparkstral.model.weights import (
    AttentionWeights,
    DenseWeight,
    ExpertWeights,
    Fp8Weight,
    LayerWeights,
    ModelWeights,
    Nvfp4Weight,
    Weight,
)


def load(
    path: Path | str,
    device: torch.device | str = "cpu",
    progress: Callable[[LoadProgress], None] | None = None,
) -> tuple[ModelConfig, ModelWeights]:
    """Read the checkpoint in the folder `path` onto `device`, in the forms and dtypes in which it is stored.

    Every buffer is allocated once and filled in place; memory beside the weights is one buffer of 64 MiB.
    `progress` is called during reading, at most about 1,000 times. Raises `CheckpointError`, naming file and
    remedy, before any allocation where the headers show the fault.
    """
    return load_planned(plan_load(Path(path)), device, progress)


def load_planned(
    plan: LoadPlan, device: torch.device | str = "cpu", progress: Callable[[LoadProgress], None] | None = None
) -> tuple[ModelConfig, ModelWeights]:
    """`load` for a plan that was made before, for instance to ask for `weights_bytes` first."""
    buffers = {
        buffer: torch.empty(buffer.shape, dtype=TORCH_DTYPES[buffer.dtype], device=device)
        for buffer in plan.buffers
    }
    fill(buffers, plan, progress)
    _check_scales(plan, buffers)
    parts: dict[str, dict[Part, Tensor]] = {}
    for buffer, tensor in buffers.items():
        parts.setdefault(buffer.slot, {})[buffer.part] = tensor
    return plan.config, _assemble(plan, parts)


def _check_scales(plan: LoadPlan, buffers: Mapping[Buffer, Tensor]) -> None:
    """Refuse a scale that is NaN, negative or infinite, or a divisor of 0: tokens would be wrong silently.

    An infinite divisor passes: that is how a matrix of zeros is stored.
    """
    for buffer, tensor in buffers.items():
        if not is_scalar_part(plan.forms[buffer.slot], buffer.part):
            continue
        good = tensor > 0 if buffer.part is Part.GLOBAL_SCALE else (tensor >= 0) & tensor.isfinite()
        if bool(good.all()):
            continue
        index = int(good.view(-1).logical_not().nonzero()[0])
        # The last span of the buffer that begins at or before this element holds it.
        span = max(
            (span for span in plan.spans if span.buffer == buffer and span.first_element <= index),
            key=lambda span: span.first_element,
        )
        raise CheckpointError(
            f"{span.tensor.file}: tensor {span.tensor.name} is {float(tensor.view(-1)[index])}, which no "
            "scale can be. The file is damaged, or the quantization failed; download it again, or use "
            "another checkpoint."
        )


def _assemble(plan: LoadPlan, parts: Mapping[str, Mapping[Part, Tensor]]) -> ModelWeights:
    def tensor(slot: str) -> Tensor:  # of a slot that is never quantized
        return parts[slot][Part.WEIGHT]

    def weight(slot: str) -> Weight:
        of_slot = parts[slot]
        match plan.forms[slot]:
            case Form.DENSE:
                return DenseWeight(of_slot[Part.WEIGHT])
            case Form.FP8:
                return Fp8Weight(of_slot[Part.WEIGHT], of_slot[Part.SCALE])
            case Form.NVFP4:
                return Nvfp4Weight(of_slot[Part.PACKED], of_slot[Part.SCALE], of_slot[Part.GLOBAL_SCALE])

    def experts(prefix: str) -> ExpertWeights:
        return ExpertWeights(weight(prefix + "gate"), weight(prefix + "up"), weight(prefix + "down"))

    layers = []
    for layer in range(plan.config.num_hidden_layers):
        prefix = f"layers.{layer}."
        attention = AttentionWeights(
            q_a_proj=weight(prefix + "attention.q_a_proj"),
            q_a_norm=tensor(prefix + "attention.q_a_norm"),
            q_b_proj=weight(prefix + "attention.q_b_proj"),
            kv_a_proj=weight(prefix + "attention.kv_a_proj"),
            kv_a_norm=tensor(prefix + "attention.kv_a_norm"),
            kv_b_proj=weight(prefix + "attention.kv_b_proj"),
            o_proj=weight(prefix + "attention.o_proj"),
        )
        layers.append(
            LayerWeights(
                attention_norm=tensor(prefix + "attention_norm"),
                attention=attention,
                ffn_norm=tensor(prefix + "ffn_norm"),
                router=tensor(prefix + "router"),
                experts=experts(prefix + "experts."),
                shared_expert=experts(prefix + "shared_expert."),
            )
        )
    return ModelWeights(tensor("embed_tokens"), tuple(layers), tensor("norm"), weight("lm_head"))
