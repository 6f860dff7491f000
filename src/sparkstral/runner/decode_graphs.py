"""Decode steps as CUDA graphs: for each number of requests one of the model's pass and two of the sampling.

Owns the capture and the batch that reads the step's buffers; must not know requests. The mask of a request
with a grammar is made on the host while the model's graph runs, so the sampling is a graph of its own: one for steps in
which a request changes its logits or wants log probabilities, one for all others. Without a GPU the same calls run
eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from sparkstral.model.fast_batch import AbsorbedGroup, FastBatch
from sparkstral.runner.decode_sizes import decode_sizes
from sparkstral.runner.step_buffers import StepBuffers


class Forward(Protocol):
    def __call__(self, batch: FastBatch, latent_pool: Tensor, /) -> Tensor: ...


class DecodeGraphs:
    """Used by the engine thread alone. `sample` writes the tokens of the logits it is given into the buffers; its
    second argument says whether it has more to do than choose them."""

    def __init__(
        self, forward: Forward, sample: Callable[[Tensor, bool], None], latent_pool: Tensor, buffers: StepBuffers
    ) -> None:
        self._forward = forward
        self._sample = sample
        self._latent_pool = latent_pool
        self._buffers = buffers
        self.sizes = decode_sizes(buffers.max_num_seqs)
        self._is_gpu = latent_pool.is_cuda
        self._graphs: dict[int, tuple[Any, tuple[Any, Any]]] = {}
        self._memory_pool: Any = None
        self._logits = torch.empty(0)  # of the last eager pass

    def size_for(self, num_requests: int) -> int:
        return next(size for size in self.sizes if size >= num_requests)

    def batch(self, size: int) -> FastBatch:
        """The first `size` rows of the buffers."""
        buffers, inputs = self._buffers, self._buffers.inputs
        group = AbsorbedGroup(
            rows=slice(0, size),
            block_tables=buffers.block_tables[:size],
            cu_seqlens_q=buffers.cu_seqlens_q[: size + 1],
            seq_lens=inputs["seq_lens"][:size],
            max_query_len=1,
        )
        return FastBatch(
            input_ids=inputs["input_ids"][:size],
            sources=inputs["sources"][:size],
            previous=buffers.token_ids,
            positions=inputs["positions"][:size],
            slots=inputs["slots"][:size],
            absorbed=(group,),
            expanded=None,
            logits_rows=None,
        )

    def run_eagerly(self, size: int) -> None:
        """One step of padding: what is compiled is compiled, what is loaded is loaded."""
        self._sample(self._forward(self.batch(size), self._latent_pool), True)

    def capture(self, size: int) -> None:
        """After `run_eagerly`. The graphs share one memory: none needs what it made when another runs."""
        if not self._is_gpu:
            return
        torch.cuda.synchronize()
        forward, samples = torch.cuda.CUDAGraph(), (torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph())
        with torch.cuda.graph(forward, pool=self._memory_pool):
            logits = self._forward(self.batch(size), self._latent_pool)
        self._memory_pool = forward.pool()
        for with_more, sample in enumerate(samples):
            with torch.cuda.graph(sample, pool=self._memory_pool):
                self._sample(logits, bool(with_more))
        self._graphs[size] = forward, samples

    def forward(self, size: int) -> None:
        if self._is_gpu:
            self._graphs[size][0].replay()
        else:
            self._logits = self._forward(self.batch(size), self._latent_pool)

    def sample(self, size: int, with_more: bool) -> None:
        """What `forward` of this size left."""
        if self._is_gpu:
            self._graphs[size][1][with_more].replay()
        else:
            self._sample(self._logits, with_more)
