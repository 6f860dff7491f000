"""Triton form of kernels/penalties: a program a row and stretch of the vocabulary; then one a row for the count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import DEFAULT_STAGES, KernelSpec
from sparkstral.kernels.penalties.reference import IN_PROMPT
from sparkstral.types import MAX_BIASED_TOKENS

_COUNT_BITS = tl.constexpr(IN_PROMPT - 1)
_BIASES_AT_ONCE = tl.constexpr(256)


@dataclass(frozen=True, slots=True)
class PenaltiesConfig:
    stretch: int  # tokens of a program: a power of 2
    num_warps: int


# As kernels/sampling: 32 programs a row of 131,072 tokens.
CONFIGS = {(9, 0): PenaltiesConfig(stretch=4096, num_warps=4), (12, 1): PenaltiesConfig(stretch=4096, num_warps=4)}


def allocate_table(max_records: int, vocab_size: int, device: torch.device) -> Tensor:
    """[max_records, V + 2 B]: 0.5 MB a record of 131,072 tokens."""
    return torch.zeros(max_records, vocab_size + 2 * MAX_BIASED_TOKENS, dtype=torch.int32, device=device)


@triton.jit
def _change(
    logits_ptr, table_ptr, records_ptr, repetition_ptr, presence_ptr, frequency_ptr, num_biases_ptr, out_ptr,
    V: tl.constexpr, BIASES: tl.constexpr, STRETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = stretch * STRETCH
    token = begin + tl.arange(0, STRETCH)
    inside = token < V
    wait_for_inputs(PDL)
    logits = tl.load(logits_ptr + row * V + token, mask=inside, other=0.0)
    record = tl.load(records_ptr + row)
    record_ptr = table_ptr + record.to(tl.int64) * (V + 2 * BIASES)
    if record >= 0:
        held = tl.load(record_ptr + token, mask=inside, other=0)
        repetition = tl.load(repetition_ptr + row)
        repeated = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
        logits = tl.where(held != 0, repeated, logits)
        count = held & _COUNT_BITS
        taken_off = tl.load(presence_ptr + row) + tl.load(frequency_ptr + row) * count.to(tl.float64)
        logits = tl.where(count > 0, logits - taken_off.to(tl.float32), logits)
    tl.store(out_ptr + row * V + token, logits, mask=inside)
    if record >= 0:
        num_biases = tl.load(num_biases_ptr + row)
        if num_biases > 0:
            tl.debug_barrier()  # other threads than wrote a logit add to it
            for first in range(0, num_biases, _BIASES_AT_ONCE):
                place = first + tl.arange(0, _BIASES_AT_ONCE)
                biased = tl.load(record_ptr + V + place, mask=place < num_biases, other=-1)
                mine = (biased >= begin) & (biased < begin + STRETCH) & (biased < V)
                bias = tl.load(record_ptr + V + BIASES + place, mask=mine, other=0).to(tl.float32, bitcast=True)
                at = out_ptr + row * V + biased
                tl.store(at, tl.load(at, mask=mine, other=0.0) + bias, mask=mine)


@triton.jit
def _note(
    table_ptr, records_ptr, token_ids_ptr, status_ptr, V: tl.constexpr, BIASES: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    let_next_start(PDL)
    row = tl.program_id(0)
    wait_for_inputs(PDL)
    record = tl.load(records_ptr + row)
    if (record >= 0) & (tl.load(status_ptr + row) == 0):
        token = tl.load(token_ids_ptr + row)
        tl.atomic_add(table_ptr + record.to(tl.int64) * (V + 2 * BIASES) + token, 1, sem="relaxed")


def change_logits(
    logits: Tensor,
    table: Tensor,
    records: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
    num_biases: Tensor,
    *,
    out: Tensor,
    config: PenaltiesConfig,
    pdl: bool,
) -> Tensor:
    """logits [R, V] -> out [R, V]; the other shapes as in the contract."""
    constants = _constants(config, logits.shape[1], pdl)
    _change[(len(logits), triton.cdiv(logits.shape[1], config.stretch))](
        logits, table, records, repetition, presence, frequency, num_biases, out,
        **constants, num_warps=config.num_warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def note_tokens(
    table: Tensor, records: Tensor, token_ids: Tensor, status: Tensor, *, config: PenaltiesConfig, pdl: bool
) -> None:
    """Shapes as in the contract."""
    constants = _constants(config, table.shape[1] - 2 * MAX_BIASED_TOKENS, pdl)
    del constants["STRETCH"]
    _note[(len(records),)](table, records, token_ids, status, **constants, num_warps=1, launch_pdl=pdl)


def _constants(config: PenaltiesConfig, vocab_size: int, pdl: bool) -> dict[str, int]:
    return {"V": vocab_size, "BIASES": MAX_BIASED_TOKENS, "STRETCH": config.stretch, "PDL": pdl}


def specs(config: PenaltiesConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The real model's vocabulary."""
    types = {
        "logits_ptr": "*fp32", "table_ptr": "*i32", "records_ptr": "*i32", "repetition_ptr": "*fp32",
        "presence_ptr": "*fp64", "frequency_ptr": "*fp64", "num_biases_ptr": "*i32", "out_ptr": "*fp32",
        "token_ids_ptr": "*i64", "status_ptr": "*i32",
    }  # fmt: skip
    constants = _constants(config, 131072, pdl)
    return [
        KernelSpec(
            name, function, {n: types[n] for n in function.arg_names if n in types},
            {n: value for n, value in constants.items() if n in function.arg_names}, num_warps, DEFAULT_STAGES,
        )
        for name, function, num_warps in (("change", _change, config.num_warps), ("note", _note, 1))
    ]  # fmt: skip
