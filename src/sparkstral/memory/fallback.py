"""The plan of the fallback: vLLM with VLLM_MLA_DISABLE=1, which stores keys and values of every head.

Owns the sums of that recipe, so that a length is refused on paper and not by a crash after eight minutes of loading.
Must not know vLLM. Source: the public recipe that this project starts from (0.75 of the memory; 22.96 GiB were free for
the cache, 42,000 tokens were refused and 40,000 served).
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkstral.kv_cache.layout import KvLayout
from sparkstral.memory.holding import BYTES_PER_VALUE
from sparkstral.memory.host import DEFAULT_TOTAL_BYTES
from sparkstral.memory.lines import PlanLine
from sparkstral.memory.plan import MemoryPlan, PlanRequest, draw_plan
from sparkstral.memory.probe import AvailableMemory
from sparkstral.model.config import QK_NOPE_HEAD_DIM, QK_ROPE_HEAD_DIM, V_HEAD_DIM, ModelConfig
from sparkstral.types import Precision
from sparkstral.units import GiB, format_gib

DEFAULT_UTILIZATION = 0.75
"""--gpu-memory-utilization of the recipe; the rest of the memory is for everything that vLLM does not count."""

BLOCK_SIZE_TOKENS = 16
_RECIPE_WEIGHTS_BYTES = 70_801_959_560
_RECIPE_KV_BYTES = int(22.96 * GiB)
_BESIDE_BYTES = int(DEFAULT_UTILIZATION * DEFAULT_TOTAL_BYTES) - _RECIPE_WEIGHTS_BYTES - _RECIPE_KV_BYTES
_BESIDE = PlanLine(
    "activations, graphs", _BESIDE_BYTES,
    "what the recipe's run took beside weights and its 22.96 GiB of cache, for 0.75 of 119 GiB",
)  # fmt: skip
_REMEDY = "or serve it with native MLA, which stores 25.6 times less a token"


@dataclass(frozen=True, slots=True)
class _VllmPasses:
    """What vLLM measures in a trial pass before it sizes its cache; no length changes it."""

    model: ModelConfig
    max_num_seqs: int = 1

    def lines(self, max_model_len: int) -> tuple[PlanLine, ...]:
        return (_BESIDE,)


def expanded_layout(config: ModelConfig, kv: Precision = "bf16") -> KvLayout:
    """Keys and values of every head: 589,824 bytes a token of the real model in bfloat16."""
    width = config.num_attention_heads * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM + V_HEAD_DIM)
    return KvLayout(config.num_hidden_layers, width, BYTES_PER_VALUE[kv], BLOCK_SIZE_TOKENS, num_null_blocks=0)


def draw_fallback_plan(
    config: ModelConfig,
    stored: tuple[PlanLine, ...],
    memory: AvailableMemory,
    *,
    max_model_len: int | None = None,
    concurrency: int | None = None,
    kv: Precision = "bf16",
    utilization: float = DEFAULT_UTILIZATION,
    layout: KvLayout | None = None,
) -> MemoryPlan:
    """For weights as `stored` and a machine with `memory`; without a length the largest that fits. `layout`: of a vLLM
    whose cache is another (native MLA) and all else the same.

    Raises ConfigError for a length that the model does not have."""
    share = AvailableMemory(
        int(utilization * memory.num_bytes),
        f"--gpu-memory-utilization {utilization:g} of {format_gib(memory.num_bytes)}, {memory.source}",
    )
    request = PlanRequest(
        stored, _VllmPasses(config), layout or expanded_layout(config, kv), max_model_len,
        concurrency=concurrency or 1, floor_bytes=0, remedy=_REMEDY if layout is None else "",
    )  # fmt: skip
    return draw_plan(request, share)
