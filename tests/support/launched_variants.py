"""Does the warm-up reach every kernel variant that serving launches: `python -m tests.support.launched_variants`.

A process of its own, without Triton's interpreter: launches on tensors without memory are counted and not made. Prints
a line for each variant that random steps launched and the warm-up had not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from sparkstral.kernels.configs import KernelConfigs
from sparkstral.model.config import ModelConfig
from sparkstral.model.fast_batch import MAX_ABSORBED_QUERIES
from sparkstral.model.fast_mistral4 import FastLimits, FastMistral4
from sparkstral.runner.compile_worker import weights_without_memory
from sparkstral.runner.fast_batch import StepShape, build_fast_batch
from sparkstral.runner.fast_runner import FastRunner
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.runner.logprobs import ROWS_AT_ONCE
from sparkstral.runner.warm_up_steps import all_explained, prompt_steps
from sparkstral.types import Precision, ScheduledRequest
from tests.unit.memory.test_plan import REAL

META = torch.device("meta")
BLOCK_SIZE = 64
HELD: tuple[Precision, ...] = ("bf16", "fp8")
DEMO = replace(
    REAL, hidden_size=384, vocab_size=8192, num_attention_heads=6, q_lora_rank=256, n_routed_experts=16,
    moe_intermediate_size=192,
)  # fmt: skip


def random_step(draw: random.Random, limits: FastLimits) -> list[ScheduledRequest]:
    left, step = limits.prefill_tokens, []
    for i in range(draw.randrange(1, limits.max_num_seqs + 1)):
        queries = draw.choice([1, 1, 2, 5, 8, 9, 30, draw.randrange(1, limits.prefill_tokens + 1)])
        queries = min(queries, left, limits.max_positions - 1)
        if queries:
            left -= queries
            seq_len = min(limits.max_positions - 1, queries + draw.choice([0, 10, 500, 20_000]))
            blocks = (0,) * -(-seq_len // BLOCK_SIZE)
            samples = draw.random() < 0.8
            step.append(ScheduledRequest(str(i), (1,) * queries, seq_len - queries, blocks, samples))
    return step


def steps_with_drafts(limits: FastLimits) -> list[list[ScheduledRequest]]:
    """One request and several, with and without a plain one beside them; none where its rows are too few."""

    def request(name: str, queries: int) -> ScheduledRequest:
        return ScheduledRequest(name, (1,) * queries, 40, (0,) * 2, True, num_drafts=queries - 1)

    if limits.max_num_seqs < MAX_ABSORBED_QUERIES:
        return []
    steps = [[request("a", queries)] for queries in range(2, MAX_ABSORBED_QUERIES + 1)]
    steps += [[request("plain", 1), request("a", 2)], [request("a", 2), request("b", 3), request("c", 3)]]
    return steps


def missing(
    model_config: ModelConfig, capability: tuple[int, int], limits: FastLimits, held: Precision, seed: int
) -> set[str]:
    """Variants that serving launches and the warm-up does not."""
    launched: set[str] = set()

    def count(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        is_aligned = [tensor.storage_offset() * tensor.element_size() % 16 == 0 for tensor in tensors]
        launched.add(repr((self.__name__, sorted(options.items()), [t.dtype for t in tensors], is_aligned)))

    JITFunction.run = count
    kernels = KernelConfigs.shipped(capability)
    config = replace(model_config, num_hidden_layers=2)
    model = FastMistral4(config, weights_without_memory(config), kernels, limits, META, torch.bfloat16, held)
    pool = allocate_latent_pool(2, 2, BLOCK_SIZE, META, torch.bfloat16, held)
    runner = FastRunner(model, pool, 0, {}.__getitem__, config.vocab_size)
    shape = StepShape(BLOCK_SIZE, limits.max_num_seqs, kernels.prefill, limits.prefill_keys)
    previous = torch.empty(1, dtype=torch.int64, device=META)

    def forward(step: Sequence[ScheduledRequest], explained: dict[int, int]) -> None:
        batch, sampling = build_fast_batch(step, shape, META, {}, previous, explained)
        hidden = model.hidden(batch, pool)
        model.logits(hidden[: len(sampling)])

    for size in runner.graphs.sizes:
        runner.graphs.run_eagerly(size)
    model.logits(torch.empty(ROWS_AT_ONCE, config.hidden_size, dtype=torch.bfloat16, device=META))
    for step in prompt_steps(limits, BLOCK_SIZE, [pair.max_tokens for pair in kernels.moe.many]):
        forward(step, all_explained(step))
    in_warm_up = set(launched)
    draw = random.Random(seed)
    for _ in range(20):
        step = random_step(draw, limits)
        if any(len(request.token_ids) > 1 for request in step):
            forward(step, draw.choice(({}, {0: len(step[0].token_ids) - step[0].samples}, all_explained(step))))
    for step in steps_with_drafts(limits):
        forward(step, {})
    return launched - in_warm_up


def main() -> None:
    for seed, (max_num_seqs, tokens, positions) in enumerate(
        ((1, 2, 300), (5, 64, 300), (8, 9, 40_000), (12, 13, 300), (32, 8192, 40_000), (64, 65, 300), (128, 2048, 300))
    ):
        keys = min(16_384, max(tokens, positions))
        limits = FastLimits(max_num_seqs, positions, keys, tokens, min(4096, tokens))
        for config, capability in ((DEMO, (9, 0)), (REAL, (9, 0)), (REAL, (12, 1))):
            for held in HELD if config is REAL else HELD[:1]:
                for variant in sorted(missing(config, capability, limits, held, seed)):
                    print(config.hidden_size, capability, limits, held, variant)


if __name__ == "__main__":
    main()
