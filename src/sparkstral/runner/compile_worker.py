"""Compile kernels for this process's share of the variants: `python -m sparkstral.runner.compile_worker SETUP`.

A process of its own, several at once, beside the engine that loads meanwhile. It runs the warm-up's steps on tensors
without memory and lets Triton compile each launch instead of launching it, so that the engine's own launches find every
variant in Triton's cache on disk. No device is touched; nothing is compiled twice.
"""

from __future__ import annotations

import base64
import logging
import os
import pickle
import subprocess
import sys
import zlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparkstral.kernels import build
from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.vision_attention import triton_kernel as vision_attention
from sparkstral.model.config import (
    KV_LORA_RANK,
    LATENT_WIDTH,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    V_HEAD_DIM,
    VISION_HEAD_DIM,
    ModelConfig,
)
from sparkstral.model.fast_mistral4 import FastLimits, FastMistral4
from sparkstral.model.weights import (
    AttentionWeights,
    DenseWeight,
    ExpertWeights,
    InputGlobalScales,
    LayerWeights,
    ModelWeights,
    Nvfp4Weight,
    StackedExperts,
)
from sparkstral.runner.fast_batch import StepShape, build_fast_batch
from sparkstral.runner.fast_runner import FastRunner
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.runner.logprobs import ROWS_AT_ONCE
from sparkstral.runner.warm_up_steps import all_explained, prompt_steps
from sparkstral.types import Precision, PrefillForm

logger = logging.getLogger(__name__)

_META = torch.device("meta")
MAX_WORKERS = 8  # of 0.7 GB each; at 150 variants of a second each more gain little


@dataclass(frozen=True, slots=True)
class CompileSetup:
    """What decides the variants, and which of them are this worker's."""

    model: ModelConfig
    limits: FastLimits
    block_size_tokens: int
    capability: tuple[int, int]
    kernels: KernelConfigs
    dense: Precision = "bf16"
    kv: Precision = "bf16"
    prefill: PrefillForm = "w4a16"
    worker: int = 0
    num_workers: int = 1


def start_workers(setup: CompileSetup) -> list[subprocess.Popen[bytes]]:
    """One process a core, MAX_WORKERS at most. They end by themselves; what they could not compile the engine will."""
    count = max(1, min(MAX_WORKERS, len(os.sched_getaffinity(0))))
    workers = []
    for worker in range(count):
        text = base64.b64encode(pickle.dumps(replace(setup, worker=worker, num_workers=count))).decode()
        command = [sys.executable, "-m", "sparkstral.runner.compile_worker", text]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        workers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment))
    return workers


def compile_share(setup: CompileSetup) -> int:
    """Compile this worker's variants; how many there were. From here on this process cannot launch kernels."""
    from triton.runtime.jit import JITFunction

    major, minor = setup.capability
    build.stand_in(10 * major + minor)
    build.install_shipped(10 * major + minor)
    seen: set[str] = set()
    num_compiled = 0
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        nonlocal num_compiled
        if "PTX" in options:  # tensors without memory ask for the interpreter's form
            options["PTX"] = True
        kinds = [str(argument.dtype) if isinstance(argument, Tensor) else "" for argument in arguments]
        key = repr((self.__name__, sorted(options.items()), kinds))
        if key in seen:
            return
        seen.add(key)
        if zlib.crc32(key.encode()) % setup.num_workers == setup.worker:
            run(self, *arguments, grid=grid, warmup=True, **options)
            num_compiled += 1

    JITFunction.run = compile_only
    _run_all_steps(setup)
    return num_compiled


def _run_all_steps(setup: CompileSetup) -> None:
    kernels = setup.kernels
    config = replace(setup.model, num_hidden_layers=2)  # all but the last pass on all rows, the last those with logits
    weights = weights_without_memory(config, setup.prefill)
    model = FastMistral4(config, weights, kernels, setup.limits, _META, torch.bfloat16, setup.dense)
    pool = allocate_latent_pool(2, 2, setup.block_size_tokens, _META, torch.bfloat16, setup.kv)
    runner = FastRunner(model, pool, 0, _no_grammar, config.vocab_size)
    for size in runner.graphs.sizes:
        runner.graphs.run_eagerly(size)
    shape = StepShape(setup.block_size_tokens, setup.limits.max_num_seqs, kernels.prefill, setup.limits.prefill_keys)
    previous = torch.empty(1, dtype=torch.int64, device=_META)
    model.logits(torch.empty(ROWS_AT_ONCE, config.hidden_size, dtype=torch.bfloat16, device=_META))
    bounds = [pair.max_tokens for pair in (*kernels.moe.many, *kernels.moe.w4a4)]
    for step in prompt_steps(setup.limits, setup.block_size_tokens, bounds):
        batch, sampling = build_fast_batch(step, shape, _META, {}, previous, all_explained(step))
        model.logits(model.hidden(batch, pool)[: len(sampling)])
    if config.vision is not None:
        qkv = torch.empty(4, 3, config.vision.num_attention_heads, VISION_HEAD_DIM, dtype=torch.bfloat16, device=_META)
        rotation = torch.empty(4, VISION_HEAD_DIM // 2, dtype=torch.complex64, device=_META)
        tiles = vision_attention.plan_tiles((0, 4), kernels.vision, _META)
        vision_attention.vision_attention(qkv, rotation, tiles, config=kernels.vision)


def _no_grammar(_spec: object) -> Any:
    raise LookupError("nothing is generated here")


def weights_without_memory(config: ModelConfig, prefill: PrefillForm = "w4a16") -> ModelWeights:
    """Its layers without memory."""

    def dense(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device=_META)

    def nvfp4(*shape: int, parts: tuple[int, ...]) -> Nvfp4Weight:
        *lead, columns = shape
        return Nvfp4Weight(
            torch.empty(*lead, columns // 2, dtype=torch.uint8, device=_META),
            torch.empty(*lead, columns // 16, dtype=torch.float8_e4m3fn, device=_META),
            torch.empty(*parts, dtype=torch.float32, device=_META),
        )

    hidden, inner, rank = config.hidden_size, config.moe_intermediate_size, config.q_lora_rank
    heads, stack = config.num_attention_heads, config.n_routed_experts + 1
    attention = AttentionWeights(
        q_a_proj=DenseWeight(dense(rank, hidden)),
        q_a_norm=dense(rank),
        q_b_proj=DenseWeight(dense(heads * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM), rank)),
        kv_a_proj=DenseWeight(dense(LATENT_WIDTH, hidden)),
        kv_a_norm=dense(KV_LORA_RANK),
        kv_b_proj=DenseWeight(dense(heads * (QK_NOPE_HEAD_DIM + V_HEAD_DIM), KV_LORA_RANK)),
        o_proj=DenseWeight(dense(hidden, heads * V_HEAD_DIM)),
    )
    unused = DenseWeight(dense(0))
    experts = ExpertWeights(unused, unused, unused)
    stacked = StackedExperts(
        nvfp4(stack, 2 * inner, hidden, parts=(stack, 2)), nvfp4(stack, hidden, inner, parts=(stack,))
    )
    router = dense(config.n_routed_experts, hidden)
    scales = torch.empty(config.n_routed_experts, dtype=torch.float32, device=_META)
    input_scales = InputGlobalScales(scales, scales, scales) if prefill == "w4a4" else None
    layer = LayerWeights(dense(hidden), attention, dense(hidden), router, experts, experts, stacked, input_scales)
    vocab = config.vocab_size
    layers, head = (layer,) * config.num_hidden_layers, DenseWeight(dense(vocab, hidden))
    return ModelWeights(dense(vocab, hidden), layers, dense(hidden), head)


def main() -> None:
    compile_share(pickle.loads(base64.b64decode(sys.argv[1])))


if __name__ == "__main__":
    main()
