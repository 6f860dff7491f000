"""The device's records of requests whose penalties or biases change their logits (kernels/penalties).

Owns which record is whose and how it gets there; must not know which rows a step has. A record is filled when its
request first samples; from then on the device counts the tokens itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

import torch

from sparkstral.kernels.penalties.triton_kernel import allocate_table
from sparkstral.runner.request_state import RequestState
from sparkstral.sampling.processors import History
from sparkstral.sampling.records import fill_record


@dataclass(frozen=True, slots=True)
class Record:
    index: int  # of the table
    num_biases: int


class RequestRecords:
    """As many as requests sample in a step."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        self.table = allocate_table(max_num_seqs, vocab_size, device)
        self._vocab_size = vocab_size
        self._host = torch.zeros(self.table.shape[1], dtype=torch.int32, pin_memory=is_gpu)
        self._sent = torch.Event(device) if is_gpu else None
        self._free = list(range(max_num_seqs))
        self._held: dict[str, Record] = {}

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if request_id in self._held:
                self._free.append(self._held.pop(request_id).index)

    def of(self, request_id: str, state: RequestState, sampling_now: Container[str]) -> Record:
        """The request's record; all its tokens must have been seen if it has none yet. With none free, one is taken
        from who is not `sampling_now`: it was preempted."""
        if request_id not in self._held:
            if not self._free:
                self.forget([next(other for other in self._held if other not in sampling_now)])
            self._held[request_id] = self._fill(self._free.pop(), state)
        return self._held[request_id]

    def _fill(self, index: int, state: RequestState) -> Record:
        if self._sent is not None:
            self._sent.synchronize()  # what was sent last lies in the same memory
        history = History(state.params, state.prompt_token_ids, state.output_token_ids)
        num_biases = fill_record(self._host.numpy(), self._vocab_size, history)
        self.table[index].copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()
        return Record(index, num_biases)
