"""Routed and shared experts of a layer in one storage, where all of them are NVFP4: what fast kernels read.

Owns where each expert's bytes lie in it (`StackedExperts` of model/weights.py). Must not know files' names.

    stacked.gate_up  [E + 1, 2I, …]: of each expert the gate's rows, then up's; one global scale for each of the two
    stacked.down     [E + 1, H, …]; expert E is the shared one
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sparkstral.checkpoint.forms import Form, Part
from sparkstral.checkpoint.spans import Buffer, Span

GATE_UP = "stacked.gate_up"
DOWN = "stacked.down"
_MATRICES = [f"{experts}.{matrix}" for experts in ("experts", "shared_expert") for matrix in ("gate", "up", "down")]


@dataclass(frozen=True, slots=True)
class _Place:
    """Expert e of a slot's part has its `num_elements` from element `first + e * stride` of `buffer` on."""

    buffer: Buffer
    first: int
    stride: int
    num_elements: int


def stack_experts(
    num_layers: int, forms: Mapping[str, Form], buffers: Sequence[Buffer], spans: Sequence[Span]
) -> tuple[list[Buffer], list[Span]]:
    """Buffers and spans with the expert slots of each layer whose experts are all NVFP4 put into its two stacks.

    The number of bytes stays what it is. Every span of an expert slot must lie within one expert.
    """
    by_key = {(buffer.slot, buffer.part): buffer for buffer in buffers}
    places: dict[Buffer, _Place] = {}
    for layer in range(num_layers):
        prefix = f"layers.{layer}."
        if all(forms[prefix + matrix] is Form.NVFP4 for matrix in _MATRICES):
            for part in (Part.PACKED, Part.SCALE, Part.GLOBAL_SCALE):
                places |= _places(prefix, part, by_key)
    # dict.fromkeys: each stack once, in order.
    kept = list(dict.fromkeys(places[buffer].buffer if buffer in places else buffer for buffer in buffers))
    return kept, [_move(span, places[span.buffer]) if span.buffer in places else span for span in spans]


def _places(prefix: str, part: Part, by_key: Mapping[tuple[str, Part], Buffer]) -> dict[Buffer, _Place]:
    def of(matrix: str) -> Buffer:
        return by_key[prefix + matrix, part]

    gate, down = of("experts.gate"), of("experts.down")
    num_experts, *gate_shape = gate.shape
    down_shape = down.shape[1:]
    # [2, N, K] is [2N, K] in memory; a matrix's one number becomes two.
    rows = [2] if part is Part.GLOBAL_SCALE else [2 * gate_shape[0], *gate_shape[1:]]
    gate_up_stack = Buffer(prefix + GATE_UP, Form.NVFP4, part, gate.dtype, (num_experts + 1, *rows))
    down_stack = Buffer(prefix + DOWN, Form.NVFP4, part, down.dtype, (num_experts + 1, *down_shape))
    gate_size, down_size = math.prod(gate_shape), math.prod(down_shape)
    stride = 2 * gate_size
    shared = num_experts * stride
    return {
        gate: _Place(gate_up_stack, 0, stride, gate_size),
        of("experts.up"): _Place(gate_up_stack, gate_size, stride, gate_size),
        of("shared_expert.gate"): _Place(gate_up_stack, shared, stride, gate_size),
        of("shared_expert.up"): _Place(gate_up_stack, shared + gate_size, stride, gate_size),
        down: _Place(down_stack, 0, down_size, down_size),
        of("shared_expert.down"): _Place(down_stack, num_experts * down_size, down_size, down_size),
    }


def _move(span: Span, place: _Place) -> Span:
    expert, within = divmod(span.first_element, place.num_elements)
    return replace(span, buffer=place.buffer, first_element=place.first + expert * place.stride + within)
