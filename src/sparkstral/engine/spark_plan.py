"""The memory of one DGX Spark with a model on it, before anything is there: no GPU, no weights, no PyTorch.

Owns which lines such a plan has; the sums are those with which an engine plans at its start (engine/build). Must not
know how a plan is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sparkstral.checkpoint.facts import ModelFacts
from sparkstral.checkpoint.held import held_lines
from sparkstral.config import DEFAULT_BLOCK_SIZE_TOKENS, DEFAULT_MAX_NUM_BATCHED_TOKENS, DEFAULT_MAX_NUM_SEQS
from sparkstral.errors import ConfigError
from sparkstral.kv_cache.layout import KvLayout
from sparkstral.memory.fallback import draw_fallback_plan, expanded_layout
from sparkstral.memory.fast_workspace import GB10_KERNELS, FastWorkspace
from sparkstral.memory.holding import BYTES_PER_VALUE, Holding
from sparkstral.memory.host import host_lines
from sparkstral.memory.plan import MemoryPlan, PlanRequest, draw_plan
from sparkstral.memory.probe import AvailableMemory
from sparkstral.memory.projection import Projection, project_plan
from sparkstral.memory.vision_workspace import VisionWorkspace
from sparkstral.runner.decode_sizes import decode_sizes


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be served. None leaves the choice to the plan."""

    memory: AvailableMemory  # of the whole machine, or with `is_live` what is free of it now
    is_live: bool = False
    max_model_len: int | None = None
    concurrency: int | None = None  # requests of the whole length at once
    holding: Holding = field(default_factory=Holding)
    with_vision: bool = True
    mla: bool = True  # False: the fallback, vLLM with keys and values of every head


@dataclass(frozen=True, slots=True)
class SparkPlan:
    memory: MemoryPlan
    kv_bytes_per_token: int
    projection: Projection


def plan_spark(facts: ModelFacts, target: Target) -> SparkPlan:
    """The plan, one that does not fit included. Raises ConfigError for settings that do not go together and for a
    length that the model does not have."""
    config = facts.config
    if target.mla:
        holding = target.holding
        if not target.with_vision:
            config = replace(config, vision=None)
        layout = KvLayout.of(
            holding.kv, holding.kv_layers(config), BYTES_PER_VALUE["bf16"], DEFAULT_BLOCK_SIZE_TOKENS
        )
        max_num_seqs = max(DEFAULT_MAX_NUM_SEQS, target.concurrency or 0)
        workspace = FastWorkspace(
            model=config,
            kernels=GB10_KERNELS,
            dtype_bytes=BYTES_PER_VALUE["bf16"],
            max_num_batched_tokens=max(DEFAULT_MAX_NUM_BATCHED_TOKENS, max_num_seqs + 1),
            max_num_seqs=max_num_seqs,
            num_graphs=len(decode_sizes(max_num_seqs)),
            dense=holding.dense,
        )
        vision = VisionWorkspace.of(config, BYTES_PER_VALUE["bf16"])
        fixed = (
            *held_lines(config, facts.forms, holding, facts.source),
            *((vision.line(),) if vision else ()),
            *host_lines(is_live=target.is_live),
        )
        request = PlanRequest(
            fixed, workspace, layout, target.max_model_len, concurrency=target.concurrency
        )
        plan = draw_plan(request, target.memory)
    else:
        holding = target.holding
        if holding.dense != "bf16" or holding.draft is not None or not target.with_vision:
            raise ConfigError(
                "--no-mla plans the fallback on vLLM, which loads the files as they are: leave --dense, --draft and "
                "--no-vision out."
            )
        layout = expanded_layout(config, holding.kv)
        plan = draw_fallback_plan(
            config, facts.stored, target.memory,
            max_model_len=target.max_model_len, concurrency=target.concurrency, kv=holding.kv,
        )  # fmt: skip
    projection = project_plan(
        config,
        holding,
        max_model_len=plan.max_model_len,
        concurrency=plan.concurrency,
        kv_bytes_per_token=layout.bytes_per_token,
        weights_bytes=facts.stored_bytes,
    )
    return SparkPlan(plan, layout.bytes_per_token, projection)
