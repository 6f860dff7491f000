"""Triton form of kernels/token_logprobs; the contract stands in the folder's `__init__`.

`_survey`: a program a row and stretch of the vocabulary finds the stretch's largest logits, one after the other, and
its sum of exponentials. `_tell`: a program a row puts the stretches together. A row that wants nothing costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec
from sparkstral.kernels.token_logprobs.reference import MAX_TOP

_MAX_TOP = tl.constexpr(MAX_TOP)
_LANES = tl.constexpr(triton.next_power_of_2(MAX_TOP))


@dataclass(frozen=True, slots=True)
class TokenLogprobsConfig:
    stretch: int  # tokens of a program: a power of 2
    num_warps: int


CONFIGS = {
    (9, 0): TokenLogprobsConfig(stretch=4096, num_warps=8),
    (12, 1): TokenLogprobsConfig(stretch=4096, num_warps=8),
}


@dataclass(frozen=True, slots=True)
class TokenLogprobsWorkspace:
    """C stretches a row."""

    peaks: Tensor  # [R, C] float32: the largest logit
    sums: Tensor  # [R, C] float32: of exp(logit - peak)
    top_logits: Tensor  # [R, C, MAX_TOP] float32, in falling order
    top_ids: Tensor  # [R, C, MAX_TOP] int32


def allocate_workspace(
    config: TokenLogprobsConfig, max_rows: int, vocab_size: int, device: torch.device
) -> TokenLogprobsWorkspace:
    stretches = triton.cdiv(vocab_size, config.stretch)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(max_rows, stretches, *shape, dtype=dtype, device=device)

    return TokenLogprobsWorkspace(empty(), empty(), empty(MAX_TOP), empty(MAX_TOP, dtype=torch.int32))


def allocate_output(max_rows: int, device: torch.device) -> Tensor:
    return torch.zeros(max_rows, 1 + 2 * MAX_TOP, dtype=torch.int32, device=device)


@triton.jit
def _survey(
    logits_ptr, num_top_ptr, peaks_ptr, sums_ptr, top_logits_ptr, top_ids_ptr,
    V: tl.constexpr, STRETCH: tl.constexpr, STRETCHES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = stretch * STRETCH + tl.arange(0, STRETCH)
    wait_for_inputs(PDL)
    num_top = tl.load(num_top_ptr + row)
    if num_top >= 0:
        logits = tl.load(logits_ptr + row * V + token, mask=token < V, other=float("-inf"))
        at = row * STRETCHES + stretch
        peak = tl.max(logits, axis=0)
        tl.store(peaks_ptr + at, peak)
        tl.store(sums_ptr + at, tl.sum(tl.exp(logits - peak), axis=0))
        for rank in range(num_top):
            largest = tl.max(logits, axis=0)
            first = tl.min(tl.where(logits == largest, token, V), axis=0)
            tl.store(top_logits_ptr + at * _MAX_TOP + rank, largest)
            tl.store(top_ids_ptr + at * _MAX_TOP + rank, first)
            logits = tl.where(token == first, float("-inf"), logits)


@triton.jit
def _tell(
    logits_ptr, token_ids_ptr, num_top_ptr, peaks_ptr, sums_ptr, top_logits_ptr, top_ids_ptr, out_ptr,
    V: tl.constexpr, STRETCHES: tl.constexpr, STRETCHES_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    num_top = tl.load(num_top_ptr + row)
    if num_top >= 0:
        stretch = tl.arange(0, STRETCHES_BLOCK)
        at = row * STRETCHES + stretch
        peaks = tl.load(peaks_ptr + at, mask=stretch < STRETCHES, other=float("-inf"))
        sums = tl.load(sums_ptr + at, mask=stretch < STRETCHES, other=0.0)
        peak = tl.max(peaks, axis=0)
        log_total = tl.log(tl.sum(sums * tl.exp(peaks - peak), axis=0))
        out_ptr += row * (1 + 2 * _MAX_TOP)
        token = tl.load(token_ids_ptr + row)
        logit = tl.load(logits_ptr + row * V + token, mask=(token >= 0) & (token < V), other=float("-inf"))
        tl.store(out_ptr, (logit - peak - log_total).to(tl.int32, bitcast=True))

        lane = tl.arange(0, STRETCHES_BLOCK * _LANES)
        rank_there = lane % _LANES
        there = (row * STRETCHES + lane // _LANES) * _MAX_TOP + rank_there
        is_there = (lane // _LANES < STRETCHES) & (rank_there < num_top)
        candidates = tl.load(top_logits_ptr + there, mask=is_there, other=float("-inf"))
        ids = tl.load(top_ids_ptr + there, mask=is_there, other=V)
        for rank in range(num_top):
            largest = tl.max(candidates, axis=0)
            first = tl.min(tl.where(candidates == largest, ids, V), axis=0)
            tl.store(out_ptr + 1 + rank, (largest - peak - log_total).to(tl.int32, bitcast=True))
            tl.store(out_ptr + 1 + _MAX_TOP + rank, first)
            candidates = tl.where(ids == first, float("-inf"), candidates)


def token_logprobs(
    logits: Tensor,
    token_ids: Tensor,
    num_top: Tensor,
    *,
    out: Tensor,
    workspace: TokenLogprobsWorkspace,
    config: TokenLogprobsConfig,
    pdl: bool,
) -> Tensor:
    """logits [R, V] -> out [R, 1 + 2 MAX_TOP]; the other shapes as in the contract."""
    num_rows, vocab_size = logits.shape
    survey, tell = _constants(config, vocab_size, pdl)
    w = workspace
    _survey[(num_rows, survey["STRETCHES"])](
        logits, num_top, w.peaks, w.sums, w.top_logits, w.top_ids,
        **survey, num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip
    _tell[(num_rows,)](
        logits, token_ids, num_top, w.peaks, w.sums, w.top_logits, w.top_ids, out,
        **tell, num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def _constants(config: TokenLogprobsConfig, vocab_size: int, pdl: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Of _survey and of _tell."""
    stretches = triton.cdiv(vocab_size, config.stretch)
    both = {"V": vocab_size, "STRETCHES": stretches, "PDL": pdl}
    return {**both, "STRETCH": config.stretch}, {**both, "STRETCHES_BLOCK": triton.next_power_of_2(stretches)}


def specs(config: TokenLogprobsConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The real model's vocabulary."""
    survey, tell = _constants(config, 131072, pdl)
    types = {
        "logits_ptr": "*fp32", "token_ids_ptr": "*i64", "num_top_ptr": "*i32", "peaks_ptr": "*fp32",
        "sums_ptr": "*fp32", "top_logits_ptr": "*fp32", "top_ids_ptr": "*i32", "out_ptr": "*i32",
    }  # fmt: skip
    return [
        KernelSpec(
            name, function, {n: types[n] for n in function.arg_names if n in types}, constants, config.num_warps,
            DEFAULT_STAGES,
        )
        for name, function, constants in (("survey", _survey, survey), ("tell", _tell, tell))
    ]  # fmt: skip
