"""What to expect of one DGX Spark (GB10), from bytes and bandwidth alone: always "projected", never measured.

Owns the machine's figures and the formula of a whole step; bench/project does the same kernel by kernel, from times
measured on another GPU. A step reads its bytes at 240 GB/s, the best that others have shown of the 273 that the bus
has, and pays 2 us for each launch inside a graph; a prompt's products go at 61 TFLOP/s at most. Must not know tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkstral.memory.holding import BYTES_PER_VALUE, Holding
from sparkstral.model.config import ModelConfig
from sparkstral.model.work import prefill_flops, step_bytes

GB10_BYTES_PER_S = 240e9
GB10_TENSOR_FLOPS = 61e12  # 48 SMs x 2.5 GHz x 512 a clock: mma.sync of bfloat16 with float32 sums
LAUNCH_US = 2.0
PROJECTED = "projected, not measured"
NVME_BYTES_PER_S = 5e9
_LAYER_LAUNCHES, _STEP_LAUNCHES = 12, 6  # of a decode step: model/fast_mistral4, then embedding, head and sampling
_SHORT_CONTEXT = 1_024


@dataclass(frozen=True, slots=True)
class DecodeProjection:
    """One decode step of `num_requests` requests, each with `context_tokens` behind it."""

    num_requests: int
    context_tokens: int
    step_bytes: int
    step_ms: float
    tokens_per_s_each: float
    tokens_per_s: float  # of all requests together


@dataclass(frozen=True, slots=True)
class Projection:
    label: str
    decode: tuple[DecodeProjection, ...]
    prompt_tokens: int
    prompt_s: float  # at least, to read so long a prompt
    load_s: float  # to read the weights from NVMe at 5 GB/s


def project_decode(
    config: ModelConfig, holding: Holding, num_requests: int, context_tokens: int, kv_bytes_per_token: int
) -> DecodeProjection:
    num_bytes = step_bytes(
        config,
        num_requests,
        num_requests * context_tokens,
        dense_bytes=BYTES_PER_VALUE[holding.dense],
        kv_bytes_per_token=kv_bytes_per_token,
    )
    launches = _LAYER_LAUNCHES * config.num_hidden_layers + _STEP_LAUNCHES
    step_s = num_bytes / GB10_BYTES_PER_S + launches * LAUNCH_US * 1e-6
    return DecodeProjection(
        num_requests, context_tokens, round(num_bytes), step_s * 1e3, 1 / step_s, num_requests / step_s
    )


def project_plan(
    config: ModelConfig,
    holding: Holding,
    *,
    max_model_len: int,
    concurrency: int,
    kv_bytes_per_token: int,
    weights_bytes: int,
) -> Projection:
    """One request at a short context and at the planned length, and as many as are planned at that length. A draft head
    is left out: what it gains depends on how much of its drafts is accepted."""
    cases = dict.fromkeys(
        [(1, min(_SHORT_CONTEXT, max_model_len)), (1, max_model_len), (max(1, concurrency), max_model_len)]
    )
    return Projection(
        label=PROJECTED,
        decode=tuple(project_decode(config, holding, *case, kv_bytes_per_token) for case in cases),
        prompt_tokens=max_model_len,
        prompt_s=prefill_flops(config, max_model_len) / GB10_TENSOR_FLOPS,
        load_s=weights_bytes / NVME_BYTES_PER_S,
    )
