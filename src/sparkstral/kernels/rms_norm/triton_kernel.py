"""Triton form of kernels/rms_norm: a program a row, which it holds in registers."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec
from sparkstral.kernels.parts import sum_parts


@dataclass(frozen=True, slots=True)
class RmsNormConfig:
    num_warps: int


# One row of 4,096 alone is bound by latency: 16 elements a thread, each read in one or two requests.
CONFIGS = {(9, 0): RmsNormConfig(num_warps=8), (12, 1): RmsNormConfig(num_warps=8)}


@triton.jit(do_not_specialize=["num_tokens"])
def _add_rms_norm(
    stream_ptr, parts_ptr, rows_ptr, weight_ptr, out_ptr, num_tokens, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, CHOSEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    lane = tl.arange(0, BLOCK)
    inside = lane < WIDTH
    weight = tl.load(weight_ptr + lane, mask=inside, other=0.0)
    out_row = tl.program_id(0).to(tl.int64)
    row = out_row
    wait_for_inputs(PDL)
    if CHOSEN:
        row = tl.load(rows_ptr + out_row).to(tl.int64)
    dtype = stream_ptr.dtype.element_ty
    x = tl.load(stream_ptr + row * WIDTH + lane, mask=inside, other=0.0)
    if PARTS > 0:
        at = parts_ptr + row * WIDTH + lane
        total = sum_parts(at, num_tokens.to(tl.int64) * WIDTH, inside, dtype, PARTS)
        x = (x.to(tl.float32) + total).to(dtype)
        if not CHOSEN:
            tl.store(stream_ptr + row * WIDTH + lane, x, mask=inside)
    wide = x.to(tl.float32)
    out_dtype = out_ptr.dtype.element_ty
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)).to(out_dtype)
    out = (normed.to(tl.float32) * weight.to(tl.float32)).to(out_dtype)
    tl.store(out_ptr + out_row * WIDTH + lane, out, mask=inside)


def add_rms_norm(
    stream: Tensor,
    parts: Tensor | None,
    weight: Tensor,
    eps: float,
    *,
    config: RmsNormConfig,
    pdl: bool,
    rows: Tensor | None = None,
) -> Tensor:
    """stream [T, D] (changed in place), parts [S, T, D] or None, weight [D] -> [T, D]; with rows [L], [L, D]."""
    num_tokens, width = stream.shape
    num_rows = num_tokens if rows is None else len(rows)
    out = weight.new_empty(num_rows, width)
    _add_rms_norm[(num_rows,)](
        stream, stream if parts is None else parts, stream if rows is None else rows, weight, out, num_tokens, eps,
        **_constants(width, 0 if parts is None else len(parts), rows is not None, pdl),
        num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def _constants(width: int, num_parts: int, chosen: bool, pdl: bool) -> dict[str, int | bool]:
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "PARTS": num_parts, "CHOSEN": chosen, "PDL": pdl}


def specs(config: RmsNormConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The real model's rows: alone, with a product in one bfloat16 part (cuBLAS), in one and in 4 float32 parts; and
    the rows whose logits are wanted."""
    found = []
    for parts, dtype, chosen in ((0, "bf16", False), (1, "bf16", False), (1, "fp32", False), (4, "fp32", False),
                                 (0, "bf16", True), (1, "bf16", True), (1, "fp32", True)):  # fmt: skip
        types = {
            "stream_ptr": "*bf16", "parts_ptr": f"*{dtype}", "rows_ptr": "*i64" if chosen else "*bf16",
            "weight_ptr": "*bf16", "out_ptr": "*bf16", "num_tokens": "i32", "eps": "fp32",
        }  # fmt: skip
        name = f"{parts} {dtype} parts{', chosen rows' if chosen else ''}"
        constants = _constants(4096, parts, chosen, pdl)
        found.append(KernelSpec(name, _add_rms_norm, types, constants, config.num_warps, DEFAULT_STAGES))
    return found
