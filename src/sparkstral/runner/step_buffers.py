"""What goes to the device and comes back in each step, in memory that is allocated once.

Owns the layout: all small inputs of a step lie in one piece of pinned memory and reach the device in one copy; sampled
tokens come back in another. Host memory exists once for each step in flight, so that nothing is overwritten that a copy
may still read. Without a GPU the same code runs on plain memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MAX_IN_FLIGHT = 2  # steps: one runs, the next is planned and launched behind it
ALIGNMENT_BYTES = 16  # of every tensor's address: Triton compiles others for addresses that are not

# Of each row. What a padding row holds: greedy, unconstrained, no token of its own.
INPUTS: dict[str, tuple[type[np.generic], float]] = {
    "input_ids": (np.int64, 0),
    "positions": (np.int64, 0),
    "slots": (np.int64, -1),
    "sources": (np.int32, -1),
    "seq_lens": (np.int32, 0),
    "temperature": (np.float32, 0),
    "top_k": (np.int32, 0),
    "top_p": (np.float64, 1),
    "min_p": (np.float32, 0),
    "uniform": (np.float64, 0),
    "mask_rows": (np.int32, -1),
    "records": (np.int32, -1),
    "repetition": (np.float32, 1),
    "presence": (np.float64, 0),
    "frequency": (np.float64, 0),
    "num_biases": (np.int32, 0),
    "num_top": (np.int32, -1),
}
OUTPUTS: dict[str, type[np.generic]] = {"token_ids": np.int64, "status": np.int32}


class _Block:
    """Arrays of `max_rows` elements side by side, on the device and, for each step in flight, on the host."""

    def __init__(self, types: dict[str, type[np.generic]], max_rows: int, device: torch.device) -> None:
        ends = [0]
        for kind in types.values():
            num_bytes = max_rows * np.dtype(kind).itemsize
            ends.append(ends[-1] + -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        self.device = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self.hosts = [
            torch.zeros(ends[-1], dtype=torch.uint8, pin_memory=device.type == "cuda") for _ in range(MAX_IN_FLIGHT)
        ]
        self.tensors: dict[str, Tensor] = {}
        self.arrays: list[dict[str, NDArray[Any]]] = [{} for _ in self.hosts]
        for (name, kind), begin in zip(types.items(), ends, strict=False):
            end = begin + max_rows * np.dtype(kind).itemsize
            self.tensors[name] = self.device[begin:end].view(torch.from_numpy(np.empty(0, kind)).dtype)
            for host, arrays in zip(self.hosts, self.arrays, strict=True):
                arrays[name] = host[begin:end].numpy().view(kind)


class StepBuffers:
    """R = max_num_seqs rows, B blocks in a table, W words in a mask."""

    def __init__(self, max_num_seqs: int, max_blocks: int, vocab_size: int, device: torch.device) -> None:
        self._inputs = _Block({name: kind for name, (kind, _) in INPUTS.items()}, max_num_seqs, device)
        self._outputs = _Block(OUTPUTS, max_num_seqs, device)
        words = (vocab_size + 31) // 32
        is_gpu = device.type == "cuda"
        self.max_num_seqs = max_num_seqs
        self.inputs = self._inputs.tensors  # by name, [R]
        self.token_ids = self._outputs.tensors["token_ids"]  # [R] int64
        self.status = self._outputs.tensors["status"]  # [R] int32
        self.cu_seqlens_q = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros(max_num_seqs, max_blocks, dtype=torch.int32, device=device)
        self.bitmask = torch.zeros(max_num_seqs, words, dtype=torch.int32, device=device)
        self._tables = [
            torch.zeros(max_num_seqs, max_blocks, dtype=torch.int32, pin_memory=is_gpu) for _ in range(MAX_IN_FLIGHT)
        ]
        self._masks = [
            torch.zeros(max_num_seqs, words, dtype=torch.int32, pin_memory=is_gpu) for _ in range(MAX_IN_FLIGHT)
        ]
        self._written: list[tuple[int, ...]] = [()] * max_num_seqs  # what each row of block_tables holds
        self._events = [torch.Event(device) for _ in range(MAX_IN_FLIGHT)] if is_gpu else None
        self._turn = 0

    def begin(self) -> dict[str, NDArray[Any]]:
        """The arrays of the next step's inputs, by name, all rows as padding has them. The step before the one in
        flight must be over."""
        self._turn = (self._turn + 1) % MAX_IN_FLIGHT
        arrays = self._inputs.arrays[self._turn]
        for name, (_, padding) in INPUTS.items():
            arrays[name][:] = padding
        return arrays

    def send_inputs(self) -> None:
        self._inputs.device.copy_(self._inputs.hosts[self._turn], non_blocking=True)

    def send_table(self, row: int, block_ids: tuple[int, ...]) -> None:
        """Bring a row of block_tables up to date; as a rule nothing has changed, or a block has come."""
        written = self._written[row]
        if written is block_ids:
            return
        begin = len(written) if block_ids[: len(written)] == written else 0
        self._written[row] = block_ids
        if begin == len(block_ids):
            return
        host = self._tables[self._turn][row, begin : len(block_ids)]
        host.numpy()[:] = block_ids[begin:]
        self.block_tables[row, begin : len(block_ids)].copy_(host, non_blocking=True)

    def masks(self) -> NDArray[np.int32]:
        """[R, W]: where the step's masks are to be written; then `send_masks`."""
        masks: NDArray[np.int32] = self._masks[self._turn].numpy()
        return masks

    def send_masks(self, num_rows: int) -> None:
        self.bitmask[:num_rows].copy_(self._masks[self._turn][:num_rows], non_blocking=True)

    def fetch_outputs(self) -> int:
        """Let the sampled tokens come to the host behind what was launched; the turn to `wait` for."""
        self._outputs.hosts[self._turn].copy_(self._outputs.device, non_blocking=True)
        if self._events is not None:
            self._events[self._turn].record()
        return self._turn

    @property
    def turn(self) -> int:
        """Of the step that was begun last."""
        return self._turn

    def wait(self, turn: int) -> tuple[list[int], list[int]]:
        """token_ids and status of all rows, when they are there."""
        if self._events is not None:
            self._events[turn].synchronize()
        arrays = self._outputs.arrays[turn]
        return arrays["token_ids"].tolist(), arrays["status"].tolist()
