"""Triton form of kernels/sampling; the contract stands in the folder's `__init__`.

Three launches. `_scan`: a program a row and stretch of the vocabulary finds its largest logit and anything that is
not finite. `_weigh`: the same programs turn logits into weights, with their sums, and, for rows with top_k or top_p,
a histogram over logarithmic buckets. `_choose`: a program a row. It takes the largest, or draws: the histogram names
the bucket in which a filter's boundary lies, the tokens of that bucket are listed in the order of their ids, and the
boundary is found bit by bit among them; then the target is looked up, first by stretch, then within one.

Weights are held in float32, exactly: they are floors of numbers with 24 significant bits. Their bit patterns order
as they do, so that a threshold is an integer. Atomic additions are of integers: their order changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec
from sparkstral.kernels.sampling.reference import NOT_FINITE, NOTHING_ALLOWED, OK

_OK, _NOT_FINITE, _NOTHING_ALLOWED = tl.constexpr(OK), tl.constexpr(NOT_FINITE), tl.constexpr(NOTHING_ALLOWED)

# Weights lie in 1 .. 2^40, bit patterns 0x3F800000 .. 0x53800000: a bucket for each 2^18 of them, 32 an octave.
_FIRST_BITS = tl.constexpr(0x3F800000)
_BUCKET_BITS = tl.constexpr(18)
_BUCKETS = tl.constexpr(2048)  # the power of 2 above the 1,281 that occur


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    stretch: int  # tokens of a program: a power of 2
    num_warps: int  # of _scan and _weigh
    choose_num_warps: int


# 131,072 tokens are 32 programs a row; `_choose` is alone on its SM and bound by latency, so it takes many warps.
CONFIGS = {
    (9, 0): SamplingConfig(stretch=4096, num_warps=4, choose_num_warps=16),
    (12, 1): SamplingConfig(stretch=4096, num_warps=4, choose_num_warps=16),
}


@dataclass(frozen=True, slots=True)
class SamplingWorkspace:
    """C stretches a row."""

    peaks: Tensor  # [R, C] float32: the largest allowed logit
    peak_ids: Tensor  # [R, C] int32
    sick: Tensor  # [R, C] int32: whether a logit is not finite
    sums: Tensor  # [R, C] int64: of the weights
    weights: Tensor  # [R, V] float32
    listed: Tensor  # [R, V] int32: tokens of one bucket
    bucket_counts: Tensor  # [R, _BUCKETS] int64
    bucket_sums: Tensor  # [R, _BUCKETS] int64


def allocate_workspace(
    config: SamplingConfig, max_rows: int, vocab_size: int, device: torch.device
) -> SamplingWorkspace:
    """1.1 MB a row of 131,072 tokens."""
    stretches = triton.cdiv(vocab_size, config.stretch)

    def empty(width: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(max_rows, width, dtype=dtype, device=device)

    return SamplingWorkspace(
        peaks=empty(stretches, torch.float32),
        peak_ids=empty(stretches, torch.int32),
        sick=empty(stretches, torch.int32),
        sums=empty(stretches, torch.int64),
        weights=empty(vocab_size, torch.float32),
        listed=empty(vocab_size, torch.int32),
        bucket_counts=empty(_BUCKETS.value, torch.int64),
        bucket_sums=empty(_BUCKETS.value, torch.int64),
    )


@triton.jit
def _load_allowed(logits_ptr, bitmask_ptr, mask_row, token, V: tl.constexpr):
    """Logits, and the same with -inf for what the row may not say."""
    inside = token < V
    logits = tl.load(logits_ptr + token, mask=inside, other=0.0)
    words = tl.full(token.shape, -1, tl.int32)
    if mask_row >= 0:
        mask_ptr = bitmask_ptr + mask_row.to(tl.int64) * ((V + 31) // 32)
        words = tl.load(mask_ptr + token // 32, mask=inside, other=0)
    allowed = ((words >> (token % 32)) & 1) == 1
    return logits, tl.where(inside & allowed, logits, float("-inf"))


@triton.jit
def _scan(
    logits_ptr, bitmask_ptr, mask_rows_ptr, peaks_ptr, peak_ids_ptr, sick_ptr, counts_ptr, bucket_sums_ptr,
    V: tl.constexpr, STRETCH: tl.constexpr, STRETCHES: tl.constexpr, CLEARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = stretch * STRETCH + tl.arange(0, STRETCH)
    wait_for_inputs(PDL)
    raw, logits = _load_allowed(logits_ptr + row * V, bitmask_ptr, tl.load(mask_rows_ptr + row), token, V)
    is_sick = (raw != raw) | (tl.abs(raw) == float("inf"))
    peak = tl.max(logits, axis=0)
    tl.store(peaks_ptr + row * STRETCHES + stretch, peak)
    tl.store(peak_ids_ptr + row * STRETCHES + stretch, tl.min(tl.where(logits == peak, token, V), axis=0))
    tl.store(sick_ptr + row * STRETCHES + stretch, tl.max(is_sick.to(tl.int32), axis=0))
    bucket = stretch * CLEARED + tl.arange(0, CLEARED)
    tl.store(counts_ptr + row * _BUCKETS + bucket, tl.zeros([CLEARED], tl.int64), mask=bucket < _BUCKETS)
    tl.store(bucket_sums_ptr + row * _BUCKETS + bucket, tl.zeros([CLEARED], tl.int64), mask=bucket < _BUCKETS)


@triton.jit
def _bucket(weight):
    return (weight.to(tl.int32, bitcast=True) - _FIRST_BITS) >> _BUCKET_BITS


@triton.jit
def _weigh(
    logits_ptr, bitmask_ptr, mask_rows_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, peaks_ptr,
    weights_ptr, sums_ptr, counts_ptr, bucket_sums_ptr,
    V: tl.constexpr, STRETCH: tl.constexpr, STRETCHES: tl.constexpr, STRETCHES_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = stretch * STRETCH + tl.arange(0, STRETCH)
    all_stretches = tl.arange(0, STRETCHES_BLOCK)
    wait_for_inputs(PDL)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0:
        peaks = tl.load(
            peaks_ptr + row * STRETCHES + all_stretches, mask=all_stretches < STRETCHES, other=float("-inf")
        )
        _, logits = _load_allowed(logits_ptr + row * V, bitmask_ptr, tl.load(mask_rows_ptr + row), token, V)
        # The difference first: dividing by a tiny temperature could overflow the largest logit itself.
        likeliness = tl.exp(tl.div_rn(logits - tl.max(peaks, axis=0), temperature))
        likely = (logits > float("-inf")) & (likeliness >= tl.load(min_p_ptr + row))
        weight = tl.where(likely, tl.floor(likeliness * 1099511627776.0), 0.0)  # 2^40
        exact = weight.to(tl.int64)
        tl.store(weights_ptr + row * V + token, weight, mask=token < V)
        tl.store(sums_ptr + row * STRETCHES + stretch, tl.sum(exact, axis=0))
        at = row * _BUCKETS + _bucket(weight)
        if tl.load(top_k_ptr + row) > 0:
            tl.atomic_add(counts_ptr + at, tl.full([STRETCH], 1, tl.int64), mask=weight > 0, sem="relaxed")
        if tl.load(top_p_ptr + row) < 1:
            tl.atomic_add(bucket_sums_ptr + at, exact, mask=weight > 0, sem="relaxed")


@triton.jit
def _is_kept(weight, token, threshold, last_tie):
    """Heavier than the threshold, or as heavy and not behind the last of its equals that stays."""
    return (weight > threshold) | ((weight == threshold) & (token <= last_tie))


@triton.jit
def _boundary(
    weights_ptr, listed_ptr, held, needed, threshold, last_tie,
    V: tl.constexpr, STRETCH: tl.constexpr, BY_COUNT: tl.constexpr,
):  # fmt: skip
    """The fewest heaviest of the tokens kept so far that hold `needed` (of their number or of their sum).

    held [_BUCKETS]: what each bucket holds of it. Returns the new threshold and last tie, the threshold's bucket, and
    the sum of weights that stay in it."""
    bucket_ids = tl.arange(0, _BUCKETS)
    from_here_up = tl.sum(held, axis=0) - tl.cumsum(held, axis=0) + held
    bucket = tl.max(tl.where(from_here_up >= needed, bucket_ids, -1), axis=0)
    above = tl.sum(tl.where(bucket_ids > bucket, held, 0), axis=0)

    num_listed = 0
    for start in range(0, V, STRETCH):
        token = start + tl.arange(0, STRETCH)
        weight = tl.load(weights_ptr + token, mask=token < V, other=0.0)
        chosen = _is_kept(weight, token, threshold, last_tie) & (weight > 0) & (_bucket(weight) == bucket)
        place = num_listed + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        tl.store(listed_ptr + place, token, mask=chosen)
        num_listed += tl.sum(chosen.to(tl.int32), axis=0)
    tl.debug_barrier()  # the list is read by other threads than wrote it

    # The largest pattern at which enough is held, one bit after the other.
    bits = _FIRST_BITS + (bucket << _BUCKET_BITS)
    step = tl.full([], 1, tl.int32) << _BUCKET_BITS
    for _ in range(_BUCKET_BITS):
        step = step >> 1
        trial = bits + step
        amount = above
        for start in range(0, num_listed, STRETCH):
            place = start + tl.arange(0, STRETCH)
            token = tl.load(listed_ptr + place, mask=place < num_listed, other=0)
            weight = tl.load(weights_ptr + token, mask=place < num_listed, other=0.0)
            of_each = tl.full([STRETCH], 1, tl.int64) if BY_COUNT else weight.to(tl.int64)
            amount += tl.sum(tl.where(weight.to(tl.int32, bitcast=True) >= trial, of_each, 0), axis=0)
        bits = tl.where(amount >= needed, trial, bits)
    threshold = bits.to(tl.float32, bitcast=True)

    heavier = above
    kept_sum = tl.zeros([], tl.int64)
    for start in range(0, num_listed, STRETCH):
        place = start + tl.arange(0, STRETCH)
        token = tl.load(listed_ptr + place, mask=place < num_listed, other=0)
        weight = tl.load(weights_ptr + token, mask=place < num_listed, other=0.0)
        exact = weight.to(tl.int64)
        of_each = tl.full([STRETCH], 1, tl.int64) if BY_COUNT else exact
        heavier += tl.sum(tl.where(weight > threshold, of_each, 0), axis=0)
        kept_sum += tl.sum(tl.where(weight > threshold, exact, 0), axis=0)
    one = threshold.to(tl.int64)
    num_ties = needed - heavier if BY_COUNT else tl.cdiv(needed - heavier, one)
    kept_sum += num_ties * one

    last_tie = -1
    num_seen = tl.zeros([], tl.int64)
    for start in range(0, num_listed, STRETCH):
        place = start + tl.arange(0, STRETCH)
        token = tl.load(listed_ptr + place, mask=place < num_listed, other=0)
        weight = tl.load(weights_ptr + token, mask=place < num_listed, other=0.0)
        is_tie = (weight == threshold).to(tl.int64)
        rank = num_seen + tl.cumsum(is_tie, axis=0)
        last_tie = tl.maximum(last_tie, tl.max(tl.where((is_tie > 0) & (rank <= num_ties), token, -1), axis=0))
        num_seen += tl.sum(is_tie, axis=0)
    tl.debug_barrier()  # before another list takes this one's place
    return threshold, last_tie, bucket, kept_sum


@triton.jit
def _choose(
    temperature_ptr, top_k_ptr, top_p_ptr, uniform_ptr, peaks_ptr, peak_ids_ptr, sick_ptr, sums_ptr, weights_ptr,
    listed_ptr, counts_ptr, bucket_sums_ptr, token_ids_ptr, status_ptr,
    V: tl.constexpr, STRETCH: tl.constexpr, STRETCHES: tl.constexpr, STRETCHES_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    stretches = tl.arange(0, STRETCHES_BLOCK)
    is_stretch = stretches < STRETCHES
    wait_for_inputs(PDL)
    at = row * STRETCHES + stretches
    peaks = tl.load(peaks_ptr + at, mask=is_stretch, other=float("-inf"))
    peak = tl.max(peaks, axis=0)
    likeliest = tl.load(peak_ids_ptr + at, mask=is_stretch & (peaks == peak), other=V)
    choice = tl.min(likeliest, axis=0)
    is_sick = tl.max(tl.load(sick_ptr + at, mask=is_stretch, other=0), axis=0) > 0
    status = tl.where(is_sick, _NOT_FINITE, tl.where(peak == float("-inf"), _NOTHING_ALLOWED, _OK))
    if (status == _OK) & (tl.load(temperature_ptr + row) > 0):
        weights_ptr += row * V
        listed_ptr += row * V
        sums = tl.load(sums_ptr + at, mask=is_stretch, other=0)
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        if (top_k > 0) | (top_p < 1):
            bucket_ids = tl.arange(0, _BUCKETS)
            bucket_sums = tl.load(bucket_sums_ptr + row * _BUCKETS + bucket_ids)
            threshold = tl.zeros([], tl.float32)
            last_tie = -1
            counts = tl.load(counts_ptr + row * _BUCKETS + bucket_ids)
            if (top_k > 0) & (top_k < tl.sum(counts, axis=0)):
                threshold, last_tie, bucket, kept_sum = _boundary(
                    weights_ptr, listed_ptr, counts, top_k.to(tl.int64), threshold, last_tie, V, STRETCH, True
                )
                bucket_sums = tl.where(bucket_ids > bucket, bucket_sums, tl.where(bucket_ids == bucket, kept_sum, 0))
            if top_p < 1:
                needed = tl.ceil(top_p * tl.sum(bucket_sums, axis=0).to(tl.float64)).to(tl.int64)
                needed = tl.maximum(needed, 1)  # top_p 0 keeps the likeliest
                threshold, last_tie, bucket, kept_sum = _boundary(
                    weights_ptr, listed_ptr, bucket_sums, needed, threshold, last_tie, V, STRETCH, False
                )
            for stretch in range(STRETCHES):
                token = stretch * STRETCH + tl.arange(0, STRETCH)
                weight = tl.load(weights_ptr + token, mask=token < V, other=0.0)
                kept = tl.where(_is_kept(weight, token, threshold, last_tie), weight, 0.0)
                sums = tl.where(stretches == stretch, tl.sum(kept.to(tl.int64), axis=0), sums)
        else:
            threshold = tl.zeros([], tl.float32)
            last_tie = -1
        ends = tl.cumsum(sums, axis=0)
        total = tl.sum(sums, axis=0)
        target = tl.minimum((tl.load(uniform_ptr + row) * total.to(tl.float64)).to(tl.int64), total - 1)
        stretch = tl.sum((ends <= target).to(tl.int32), axis=0)
        before = tl.sum(tl.where(stretches < stretch, sums, 0), axis=0)
        token = stretch * STRETCH + tl.arange(0, STRETCH)
        weight = tl.load(weights_ptr + token, mask=token < V, other=0.0)
        kept = tl.where(_is_kept(weight, token, threshold, last_tie), weight, 0.0).to(tl.int64)
        is_before = before + tl.cumsum(kept, axis=0) <= target
        choice = stretch * STRETCH + tl.sum(is_before.to(tl.int32), axis=0)
    tl.store(token_ids_ptr + row, choice.to(tl.int64))
    tl.store(status_ptr + row, status)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
    bitmask: Tensor,
    mask_rows: Tensor,
    *,
    workspace: SamplingWorkspace,
    config: SamplingConfig,
    pdl: bool,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """logits [R, V] -> token_ids [R] int64, status [R] int32, or into `out`; the other shapes as in the contract."""
    num_rows, vocab_size = logits.shape
    token_ids, status = out or (
        torch.empty(num_rows, dtype=torch.int64, device=logits.device),
        torch.empty(num_rows, dtype=torch.int32, device=logits.device),
    )
    scan, weigh = _constants(config, vocab_size, pdl)
    grid = (num_rows, scan["STRETCHES"])
    w = workspace
    _scan[grid](
        logits, bitmask, mask_rows, w.peaks, w.peak_ids, w.sick, w.bucket_counts, w.bucket_sums,
        **scan, num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip
    _weigh[grid](
        logits, bitmask, mask_rows, temperature, top_k, top_p, min_p, w.peaks,
        w.weights, w.sums, w.bucket_counts, w.bucket_sums,
        **weigh, num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip
    _choose[(num_rows,)](
        temperature, top_k, top_p, uniform, w.peaks, w.peak_ids, w.sick, w.sums, w.weights,
        w.listed, w.bucket_counts, w.bucket_sums, token_ids, status,
        **weigh, num_warps=config.choose_num_warps, launch_pdl=pdl,
    )  # fmt: skip
    return token_ids, status


def _constants(config: SamplingConfig, vocab_size: int, pdl: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Of _scan, and of the two others."""
    stretches = triton.cdiv(vocab_size, config.stretch)
    both = {"V": vocab_size, "STRETCH": config.stretch, "STRETCHES": stretches, "PDL": pdl}
    cleared = triton.next_power_of_2(triton.cdiv(_BUCKETS.value, stretches))
    return {**both, "CLEARED": cleared}, {**both, "STRETCHES_BLOCK": triton.next_power_of_2(stretches)}


def specs(config: SamplingConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The real model's vocabulary."""
    scan, weigh = _constants(config, 131072, pdl)
    scan_types = {
        "logits_ptr": "*fp32", "bitmask_ptr": "*i32", "mask_rows_ptr": "*i32", "peaks_ptr": "*fp32",
        "peak_ids_ptr": "*i32", "sick_ptr": "*i32", "counts_ptr": "*i64", "bucket_sums_ptr": "*i64",
    }  # fmt: skip
    row_types = {"temperature_ptr": "*fp32", "top_k_ptr": "*i32", "top_p_ptr": "*fp64", "min_p_ptr": "*fp32",
                 "uniform_ptr": "*fp64", "weights_ptr": "*fp32", "sums_ptr": "*i64", "listed_ptr": "*i32",
                 "token_ids_ptr": "*i64", "status_ptr": "*i32"}  # fmt: skip
    types = {**scan_types, **row_types}
    return [
        KernelSpec(
            name, function, {n: types[n] for n in function.arg_names if n in types}, constants, num_warps,
            DEFAULT_STAGES,
        )
        for name, function, constants, num_warps in (
            ("scan", _scan, scan, config.num_warps),
            ("weigh", _weigh, weigh, config.num_warps),
            ("choose", _choose, weigh, config.choose_num_warps),
        )
    ]  # fmt: skip
