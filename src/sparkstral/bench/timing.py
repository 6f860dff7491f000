"""Time on a GPU: calls captured as one CUDA graph, replayed, the median of several; and the bandwidth probe."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

NUM_REPEATS = 7
PROBE_BYTES = 4 << 30  # far more than any cache holds

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one call: the median of the repeats, the fastest and the slowest of them."""

    us: float
    us_low: float
    us_high: float


def time_calls(calls: Sequence[Call], repeats: int = NUM_REPEATS) -> Timing:
    """Time of one of `calls`, which do equal work on different inputs, captured as one CUDA graph and replayed."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for call in calls[:3]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / len(calls))
    return Timing(float(statistics.median(times)), min(times), max(times))


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second that plain operations reach: what shares of bandwidth are shares of."""

    read_bytes_per_s: float  # a sum
    copy_bytes_per_s: float  # both directions counted


def probe_bandwidth(num_bytes: int = PROBE_BYTES) -> Bandwidth:
    """Read and copy up to `num_bytes`, or what a quarter of the free memory allows."""
    free_bytes, _ = torch.cuda.mem_get_info()
    num_bytes = min(num_bytes, free_bytes // 4)
    x = torch.ones(num_bytes // 4, dtype=torch.float32, device="cuda")
    read = time_calls([lambda: torch.sum(x)] * 3).us
    y = torch.empty_like(x)
    copy = time_calls([lambda: y.copy_(x)] * 3).us
    return Bandwidth(x.nbytes / read * 1e6, 2 * x.nbytes / copy * 1e6)
