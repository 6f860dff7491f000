"""A checkpoint's folder becomes `ModelConfig` and `ModelWeights`.

Owns the allocation and the assembly; must not know names (plan) or how bytes are read (stream).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from sparkstral.checkpoint.forms import Form, Part
from sparkstral.checkpoint.locate import Layout
from sparkstral.checkpoint.plan import LoadPlan, plan_load
from sparkstral.checkpoint.spans import Buffer
from sparkstral.checkpoint.stacking import DOWN, GATE_UP
from sparkstral.checkpoint.stream import DEFAULT_READING, TORCH_DTYPES, LoadProgress, Reading, fill
from sparkstral.errors import CheckpointError
from sparkstral.model.config import VISION_HEAD_DIM, ModelConfig, VisionConfig
from sparkstral.model.weights import (
    AttentionWeights,
    DenseWeight,
    ExpertWeights,
    Fp8Weight,
    InputGlobalScales,
    LayerWeights,
    ModelWeights,
    Nvfp4Weight,
    StackedExperts,
    VisionLayerWeights,
    VisionWeights,
    Weight,
)


def load(
    path: Path | str,
    device: torch.device | str = "cpu",
    progress: Callable[[LoadProgress], None] | None = None,
) -> tuple[ModelConfig, ModelWeights]:
    """Read the checkpoint in the folder `path` onto `device`, in the forms and dtypes in which it is stored.

    Every buffer is allocated once and filled in place; a GPU's weights take 256 MiB of pinned memory meanwhile.
    `progress` is called during reading, at most about 1,000 times. Raises `CheckpointError`, naming file and
    remedy, before any allocation where the headers show the fault.
    """
    return load_planned(plan_load(Path(path)), device, progress)


def load_planned(
    plan: LoadPlan,
    device: torch.device | str = "cpu",
    progress: Callable[[LoadProgress], None] | None = None,
    reading: Reading = DEFAULT_READING,
) -> tuple[ModelConfig, ModelWeights]:
    """`load` for a plan that was made before, for instance to ask for `weights_bytes` first."""
    buffers = allocate_buffers(plan, device)
    fill(buffers, plan, progress, reading)
    _check_scales(plan, buffers)
    parts: dict[str, dict[Part, Tensor]] = {}
    for buffer, tensor in buffers.items():
        parts.setdefault(buffer.slot, {})[buffer.part] = tensor
    return plan.config, _assemble(plan, parts)


def allocate_buffers(plan: LoadPlan, device: torch.device | str) -> dict[Buffer, Tensor]:
    """Memory for the weights, with nothing in it yet."""
    return {
        buffer: torch.empty(buffer.shape, dtype=TORCH_DTYPES[buffer.dtype], device=device)
        for buffer in plan.buffers
    }


def _check_scales(plan: LoadPlan, buffers: Mapping[Buffer, Tensor]) -> None:
    """Refuse a scale that is NaN, negative or infinite, or a divisor of 0: tokens would be wrong silently.

    An infinite divisor passes: that is how a matrix of zeros is stored.
    """
    for buffer, tensor in buffers.items():
        if not buffer.is_scalar:
            continue
        good = tensor >= 0 if buffer.part is Part.SCALE else tensor > 0
        if buffer.part is not Part.GLOBAL_SCALE:
            good &= tensor.isfinite()
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

    def nvfp4(slot: str) -> Nvfp4Weight:
        return Nvfp4Weight(parts[slot][Part.PACKED], parts[slot][Part.SCALE], parts[slot][Part.GLOBAL_SCALE])

    def weight(slot: str) -> Weight:
        of_slot = parts[slot]
        match plan.forms[slot]:
            case Form.DENSE:
                return DenseWeight(of_slot[Part.WEIGHT])
            case Form.FP8:
                return Fp8Weight(of_slot[Part.WEIGHT], of_slot[Part.SCALE])
            case Form.NVFP4:
                return nvfp4(slot)

    def experts(prefix: str) -> ExpertWeights:
        return ExpertWeights(weight(prefix + "gate"), weight(prefix + "up"), weight(prefix + "down"))

    def input_scales(prefix: str) -> InputGlobalScales | None:
        gate, up, down = (parts.get(prefix + name, {}).get(Part.INPUT_SCALE) for name in ("gate", "up", "down"))
        return None if gate is None or up is None or down is None else InputGlobalScales(gate, up, down)

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
        stacked = None
        if prefix + GATE_UP in parts:
            stacked = StackedExperts(nvfp4(prefix + GATE_UP), nvfp4(prefix + DOWN))
            routed, shared = _views(stacked)
        else:
            routed, shared = experts(prefix + "experts."), experts(prefix + "shared_expert.")
        layers.append(
            LayerWeights(
                attention_norm=tensor(prefix + "attention_norm"),
                attention=attention,
                ffn_norm=tensor(prefix + "ffn_norm"),
                router=tensor(prefix + "router"),
                experts=routed,
                shared_expert=shared,
                stacked=stacked,
                input_scales=input_scales(prefix + "experts."),
            )
        )
    vision = None
    if plan.config.vision is not None:
        is_halved = plan.files.layout is Layout.HF
        vision = _assemble_vision(plan.config.vision, tensor, interleave_pairs if is_halved else lambda weight: weight)
    return ModelWeights(tensor("embed_tokens"), tuple(layers), tensor("norm"), weight("lm_head"), vision)


def _assemble_vision(
    config: VisionConfig, tensor: Callable[[str], Tensor], turned: Callable[[Tensor], Tensor]
) -> VisionWeights:
    layers = []
    for layer in range(config.num_hidden_layers):
        prefix = f"vision.layers.{layer}."
        layers.append(
            VisionLayerWeights(
                attention_norm=tensor(prefix + "attention_norm"),
                q_proj=turned(tensor(prefix + "q_proj")),
                k_proj=turned(tensor(prefix + "k_proj")),
                v_proj=tensor(prefix + "v_proj"),
                o_proj=tensor(prefix + "o_proj"),
                ffn_norm=tensor(prefix + "ffn_norm"),
                gate=tensor(prefix + "gate"),
                up=tensor(prefix + "up"),
                down=tensor(prefix + "down"),
            )
        )
    names = ("projector_norm", "merging_layer", "linear_1", "linear_2")
    return VisionWeights(
        tensor("vision.patch_conv"),
        tensor("vision.ln_pre"),
        tuple(layers),
        *(tensor(f"vision.{name}") for name in names),
    )


def interleave_pairs(weight: Tensor) -> Tensor:
    """[N * 64, D] with each head's pairs as two halves, as transformers has vision's queries and keys -> neighbours."""
    return weight.view(-1, 2, VISION_HEAD_DIM // 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def _views(stacked: StackedExperts) -> tuple[ExpertWeights, ExpertWeights]:
    """The routed experts and the shared one, in the memory of `stacked`."""
    gate_up, down = stacked.gate_up, stacked.down
    num_routed, width = down.packed.shape[0] - 1, gate_up.packed.shape[1] // 2

    def experts(of: slice | int) -> ExpertWeights:
        gate, up = (
            Nvfp4Weight(gate_up.packed[of][..., rows, :], gate_up.scale[of][..., rows, :], gate_up.global_scale[of, n])
            for n, rows in enumerate((slice(width), slice(width, None)))
        )
        return ExpertWeights(gate, up, Nvfp4Weight(down.packed[of], down.scale[of], down.global_scale[of]))

    return experts(slice(num_routed)), experts(num_routed)
