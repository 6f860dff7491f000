"""The configurations that `sparkstral tune` may choose from, beside each kernel's CONFIGS.

Data alone: an axis is one decision, its alternatives are changes of the shipped configuration, by dotted path. What a
device's compiler is known to reject is left out for it. Workloads are bench/tune's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkstral.kernels.mla_decode.triton_kernel import RowTile
from sparkstral.kernels.moe_experts.triton_matrix import MatrixProgram
from sparkstral.kernels.nvfp4_linear.triton_kernel import FewProgram, ManyTile


@dataclass(frozen=True, slots=True)
class Axis:
    operation: str
    name: str
    alternatives: tuple[Mapping[str, Any], ...]


def _both(index: int, *shape: int) -> dict[str, ManyTile]:
    """Tiles of prefill's two products, which must have the same rows."""
    return {f"many.{index}.gate_up": ManyTile(*shape), f"many.{index}.down": ManyTile(*shape)}


# In the order in which they matter for a decode step, then for a prompt: time may run out.
CANDIDATES = (
    Axis("moe_experts", "gate_up, 1 token", tuple(
        {"few.gate_up_single": FewProgram(32, warps, unroll, registers)}
        for warps, unroll, registers in (
            (8, 2, None), (8, 8, None), (4, 2, None), (4, 4, None), (4, 8, None), (8, 4, 80), (16, 4, None), (4, 8, 96),
            (2, 4, None),
        )
    )),
    Axis("moe_experts", "down, 1 token", tuple(
        {"few.down_tokens": FewProgram(rows, warps, unroll)}
        for rows, warps, unroll in ((8, 4, 4), (16, 8, 4), (16, 4, 4), (8, 8, 4), (4, 4, 4), (8, 4, 2), (16, 4, 2))
    )),
    Axis("moe_experts", "gate_up, several tokens", tuple(
        {"few.gate_up": FewProgram(32, warps, unroll, registers)}
        for warps, unroll, registers in ((8, 4, None), (8, 2, 128), (16, 4, None), (4, 4, 168))
    )),
    Axis("moe_experts", "down, by item", tuple(
        {"few.down": FewProgram(rows, warps, 4, registers)}
        for rows, warps, registers in ((16, 4, 128), (32, 8, None), (16, 8, 128), (32, 4, 168))
    )),
    Axis("moe_experts", "gate_up, matrix unit", tuple(
        {"matrix.gate_up": MatrixProgram(warps, unroll)}
        for warps, unroll in ((4, 1), (4, 4), (2, 2), (2, 4), (8, 1), (8, 2))
    )),
    Axis("moe_experts", "down, matrix unit", tuple(
        {"matrix.down": MatrixProgram(warps, unroll)}
        for warps, unroll in ((4, 1), (4, 4), (2, 2), (2, 4), (8, 1), (8, 2))
    )),
    Axis("moe_experts", "matrix unit from", tuple({"route.max_vector": limit} for limit in (1, 2, 8, 16))),
    Axis("moe_experts", "down by token up to", tuple({"few.token_major_max": limit} for limit in (0, 1, 2))),
    Axis("bf16_linear", "rows at once", tuple(
        {"fma_elements": elements, "fma_num_warps": warps}
        for elements, warps in ((8192, 4), (16384, 4), (16384, 8), (32768, 8), (8192, 8))
    )),
    Axis("bf16_linear", "rows at once up to", tuple({"max_fma_tokens": limit} for limit in (0, 1, 2, 4))),
    Axis("bf16_linear", "tiles", (
        {"num_programs": 264}, {"num_programs": 96}, {"rows": 128, "depth": 64, "num_stages": 7},
        {"depth": 256, "num_stages": 3}, {"num_stages": 3}, {"num_stages": 6}, {"depth": 64, "num_stages": 6},
    )),
    Axis("fp8_linear", "rows at once", tuple(
        {"fma_elements": elements, "fma_num_warps": warps}
        for elements, warps in ((8192, 4), (16384, 8), (32768, 4), (32768, 8), (65536, 8))
    )),
    Axis("fp8_linear", "rows at once up to", tuple({"max_fma_tokens": limit} for limit in (0, 1, 2, 4))),
    Axis("fp8_linear", "tiles", (
        {"num_programs": 264}, {"num_programs": 96}, {"depth": 256, "num_stages": 4}, {"num_stages": 4},
        {"num_stages": 5}, {"rows": 128, "num_stages": 4},
    )),
    Axis("mla_decode", "attention", (
        {"split_tokens": 128}, {"max_splits": 64}, {"max_splits": 32}, {"num_programs": 132}, {"num_programs": 48},
        {"single": RowTile(32, 32, 4, 5)}, {"single": RowTile(32, 64, 8, 5)}, {"single": RowTile(32, 64, 4, 3)},
        {"single": RowTile(16, 64, 4, 5)}, {"single": RowTile(16, 32, 4, 3)}, {"single": RowTile(64, 64, 8, 5)},
    )),
    Axis("mla_decode", "attention, KV FP8", tuple(
        {"fp8_tiles.0": RowTile(*shape)}
        for shape in ((32, 32, 4, 5), (32, 64, 8, 3), (32, 32, 8, 5), (16, 32, 4, 4), (32, 32, 4, 3))
    )),
    Axis("mla_decode", "combination", (
        {"combine_splits": 32}, {"value_rows": 128}, {"value_rows": 32}, {"num_warps": 4},
    )),
    Axis("mla_prefill", "tiles", tuple(
        {"queries": queries, "keys": keys, "num_warps": warps, "num_stages": stages}
        for queries, keys, warps, stages in ((64, 64, 4, 2), (128, 128, 8, 2), (128, 64, 8, 2), (128, 32, 8, 4),
                                             (64, 32, 4, 3), (128, 64, 4, 3))
    )),
    Axis("moe_experts", "tiles of short prompts", tuple(
        _both(0, *shape) for shape in ((64, 128, 64, 4, 3), (32, 128, 64, 4, 3), (16, 128, 64, 4, 3),
                                       (32, 128, 128, 4, 3), (64, 64, 64, 4, 3))
    )),
    Axis("moe_experts", "tiles of long prompts", tuple(
        _both(1, *shape) for shape in ((128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (128, 256, 64, 8, 3),
                                       (64, 128, 64, 4, 3), (128, 128, 128, 8, 2), (64, 256, 64, 8, 3))
    )),
    Axis("sampling", "stretches", (
        {"stretch": 2048}, {"stretch": 8192}, {"choose_num_warps": 8}, {"choose_num_warps": 32}, {"num_warps": 8},
    )),
    Axis("rms_norm", "warps", ({"num_warps": 4}, {"num_warps": 16})),
    Axis("latent_write", "warps", ({"num_warps": 2}, {"num_warps": 8})),
    Axis("rope", "warps", ({"num_warps": 2}, {"num_warps": 8})),
    Axis("nvfp4_linear", "few rows", tuple(
        {"few": FewProgram(rows, warps, 4)} for rows, warps in ((8, 4), (16, 4), (32, 8))
    )),
)  # fmt: skip

# By capability, of an operation: too much shared memory, or registers that spill, as `sparkstral kernels build
# --all-candidates` finds (docs/performance/candidates_sm_121a.json, Triton 3.9.0).
_REJECTED: Mapping[tuple[int, int], Mapping[str, tuple[Mapping[str, Any], ...]]] = {
    (12, 1): {
        "moe_experts": (
            {"few.down_tokens": FewProgram(16, 4, 4)},
            {"few.down_tokens": FewProgram(16, 4, 2)},
            _both(1, 128, 128, 64, 4, 3),
            _both(1, 128, 256, 64, 8, 3),
            _both(1, 128, 128, 128, 8, 2),
        ),
        "bf16_linear": (
            {"rows": 128, "depth": 64, "num_stages": 7}, {"depth": 256, "num_stages": 3}, {"num_stages": 6},
        ),
        "mla_decode": (
            {"max_splits": 32}, {"single": RowTile(32, 64, 8, 5)}, {"single": RowTile(64, 64, 8, 5)},
        ),
        "mla_prefill": tuple(
            {"queries": queries, "keys": keys, "num_warps": warps, "num_stages": stages}
            for queries, keys, warps, stages in ((64, 64, 4, 2), (128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 4, 3))
        ),
        "sampling": ({"stretch": 8192}, {"choose_num_warps": 32}),
    }
}  # fmt: skip


def axes_of(capability: tuple[int, int]) -> tuple[Axis, ...]:
    """CANDIDATES without what the device's compiler rejects."""
    rejected = _REJECTED.get(capability, {})
    return tuple(
        replace(axis, alternatives=tuple(
            each for each in axis.alternatives if each not in rejected.get(axis.operation, ())
        ))
        for axis in CANDIDATES
    )  # fmt: skip
