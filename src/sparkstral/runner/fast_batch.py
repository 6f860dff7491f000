"""A planned step as the tensors of one pass of the fast model, brought to the device in one copy.

Owns the order of the requests in the pass and where each token's latent goes; must not know why a request is in the
step (scheduler/). Steps of one token a request do not come here but to runner/decode_graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkstral.kernels.mla_prefill.triton_kernel import PrefillConfig, plan_passes
from sparkstral.model.fast_batch import MAX_ABSORBED_QUERIES, AbsorbedGroup, AttentionOrder, ExpandedGroup, FastBatch
from sparkstral.runner.encoder_cache import EncoderCache
from sparkstral.runner.step_buffers import ALIGNMENT_BYTES
from sparkstral.types import ScheduledRequest

NOTHING_EXPLAINED: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a pass is built for."""

    block_size_tokens: int
    max_num_seqs: int  # queries that the decode kernel's workspace holds
    prefill: PrefillConfig
    prefill_keys: int


class DeviceCopy:
    """Arrays that reach the device together. They are added first; `send` makes the copy, and then each handle that
    `add` gave is a tensor."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arrays: list[NDArray[Any]] = []
        self._tensors: list[Tensor] = []

    def add(self, array: NDArray[Any]) -> int:
        self._arrays.append(np.ascontiguousarray(array))
        return len(self._arrays) - 1

    def send(self) -> None:
        """One copy that the host does not wait for; the pinned memory is reused when it is through."""
        starts = [0]
        for array in self._arrays:
            starts.append(starts[-1] + -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        is_gpu = self._device.type == "cuda"
        host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=is_gpu)
        view = host.numpy()
        for array, start in zip(self._arrays, starts, strict=False):
            view[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        on_device = host.to(self._device, non_blocking=True)
        for array, start in zip(self._arrays, starts, strict=False):
            dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
            self._tensors.append(on_device[start : start + array.nbytes].view(dtype).view(array.shape))

    def __getitem__(self, handle: int) -> Tensor:
        return self._tensors[handle]


def build_fast_batch(
    scheduled: Sequence[ScheduledRequest],
    shape: StepShape,
    device: torch.device,
    sources: Mapping[str, int],
    previous: Tensor,
    explained: Mapping[int, int] = NOTHING_EXPLAINED,
    encoder: EncoderCache | None = None,
) -> tuple[FastBatch, tuple[int, ...]]:
    """The batch, and which request (as an index into `scheduled`) each of its first rows of logits belongs to: one row
    for the last known token, and one more for each draft, in their order.

    `sources` says of a request whose last token no host has seen which element of `previous` holds it. Of requests in
    `explained` the rows of so many first tokens follow, in its order."""
    num_queries = [len(request.token_ids) for request in scheduled]
    seq_lens = [request.num_computed_tokens + n for request, n in zip(scheduled, num_queries, strict=True)]
    order = AttentionOrder.of(num_queries, seq_lens, shape.max_num_seqs)
    requests = (*order.single, *order.several, *order.expanded)
    ends = (0, *accumulate(num_queries[request] for request in requests))
    begin_of = dict(zip(requests, ends, strict=False))

    num_tokens = ends[-1]
    input_ids = np.empty(num_tokens, dtype=np.int64)
    source_rows = np.full(num_tokens, -1, dtype=np.int32)
    positions = np.empty(num_tokens, dtype=np.int64)
    slots = np.empty(num_tokens, dtype=np.int64)
    for request in requests:
        part, begin, count = scheduled[request], begin_of[request], num_queries[request]
        rows = slice(begin, begin + count)
        input_ids[rows] = part.token_ids
        if part.request_id in sources:
            source_rows[begin + count - 1] = sources[part.request_id]
        positions[rows] = np.arange(part.num_computed_tokens, part.num_computed_tokens + count)
        blocks = np.asarray(part.block_ids, dtype=np.int64)[positions[rows] // shape.block_size_tokens]
        slots[rows] = blocks * shape.block_size_tokens + positions[rows] % shape.block_size_tokens
    sampling: list[int] = []
    rows_of_logits: list[int] = []
    for request in requests:
        if scheduled[request].samples:
            end, count = begin_of[request] + num_queries[request], 1 + scheduled[request].num_drafts
            rows_of_logits += range(end - count, end)
            sampling += [request] * count
    for request, count in explained.items():
        rows_of_logits += range(begin_of[request], begin_of[request] + count)
    logits_rows = np.array(rows_of_logits, dtype=np.int64)

    copy = DeviceCopy(device)
    of_tokens = [copy.add(array) for array in (input_ids, source_rows, positions, slots, logits_rows)]
    absorbed = []
    for group in (order.single, order.several):
        if group:
            lens = [num_queries[request] for request in group]
            begin = begin_of[group[0]]
            handles = (
                copy.add(_tables(scheduled, group)),
                copy.add(np.array([0, *accumulate(lens)], dtype=np.int32)),
                copy.add(np.array([seq_lens[request] for request in group], dtype=np.int32)),
            )
            # A bound and not the longest: the kernel's tile, and so a request's bits, are those of any batch.
            longest = 1 if group is order.single else MAX_ABSORBED_QUERIES
            absorbed.append((slice(begin, begin + sum(lens)), handles, longest))
    passes, pass_handles = [], []
    if order.expanded:
        lens = [num_queries[request] for request in order.expanded]
        planned = plan_passes(
            torch.from_numpy(_tables(scheduled, order.expanded)),
            [0, *accumulate(lens)],
            [seq_lens[request] for request in order.expanded],
            block_size=shape.block_size_tokens,
            max_keys=shape.prefill_keys,
            config=shape.prefill,
        )
        for each in planned:
            passes.append(each)
            pass_handles.append([copy.add(part.numpy()) for part in (each.slots, each.pieces, each.tiles)])
    copy.send()

    expanded = None
    if order.expanded:
        moved = tuple(
            replace(each, slots=copy[slot], pieces=copy[piece], tiles=copy[tile])
            for each, (slot, piece, tile) in zip(passes, pass_handles, strict=True)
        )
        expanded = ExpandedGroup(slice(begin_of[order.expanded[0]], num_tokens), moved)
    ids, rows_of_source, position, slot, of_logits = (copy[handle] for handle in of_tokens)
    batch = FastBatch(
        input_ids=ids,
        sources=rows_of_source,
        previous=previous,
        positions=position,
        slots=slot,
        absorbed=tuple(
            AbsorbedGroup(rows, copy[table], copy[cu], copy[lens_], longest)
            for rows, (table, cu, lens_), longest in absorbed
        ),
        expanded=expanded,
        logits_rows=of_logits,
        images=encoder.tokens([scheduled[request] for request in requests], ends[:-1]) if encoder else None,
    )
    return batch, tuple(sampling)


def _tables(scheduled: Sequence[ScheduledRequest], requests: Sequence[int]) -> NDArray[np.int32]:
    """[R, B] int32, padded with 0."""
    width = max(len(scheduled[request].block_ids) for request in requests)
    tables = np.zeros((len(requests), width), dtype=np.int32)
    for row, request in enumerate(requests):
        block_ids = scheduled[request].block_ids
        tables[row, : len(block_ids)] = block_ids
    return tables
