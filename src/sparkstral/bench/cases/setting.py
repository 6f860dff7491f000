"""The model's sizes, the configurations, and what all cases are made of."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sparkstral.errors import ConfigError
from sparkstral.kernels import latent_pool, latent_write, rope
from sparkstral.types import Precision

NOPE, ROPE, VALUE, LATENT, BLOCK_SIZE, EPS = 64, 64, 128, 256, 64, 1e-6
SCALE = 128**-0.5
TOP_K, SLOTS = 4, 5
# The kernels with a choice of configuration.
OPERATIONS = (
    "bf16_linear", "embed", "fp8_linear", "latent_write", "mla_decode", "mla_prefill", "moe_experts", "nvfp4_linear",
    "penalties", "rms_norm", "rope", "sampling", "token_logprobs", "vision_attention",
)  # fmt: skip


def shipped_configs(capability: tuple[int, int]) -> dict[str, Any]:
    """Each operation's configuration for a device. Raises ConfigError for one that the kernels do not serve."""
    found = {}
    for operation in OPERATIONS:
        configs = importlib.import_module(f"sparkstral.kernels.{operation}.triton_kernel").CONFIGS
        if capability not in configs:
            served = ", ".join(f"{major}.{minor}" for major, minor in configs)
            raise ConfigError(
                f"This GPU has compute capability {capability[0]}.{capability[1]}; the kernels are made for {served}."
            )
        found[operation] = configs[capability]
    return found


@dataclass(frozen=True)
class Setting:
    """Where cases run, and at what sizes."""

    device: str  # "meta": nothing is computed, launches are only recorded
    small: bool  # for Triton's interpreter: seconds on a CPU
    dtype: torch.dtype  # the interpreter knows no bfloat16; values are those of bfloat16 all the same
    configs: Mapping[str, Any]
    hidden: int = 4096
    query: int = 1024  # q_lora_rank
    heads: int = 32
    vocab: int = 131072
    inner: int = 2048
    experts: int = 128
    layers: int = 4  # of different experts, so that no cache serves them
    pdl: bool = True
    capability: tuple[int, int] = (9, 0)
    kept: dict[Any, Any] = field(default_factory=dict)  # weights that several cases share

    @property
    def place(self) -> torch.device:
        return torch.device(self.device)

    @property
    def ptx(self) -> bool:
        return self.device == "cuda"

    def randn(self, *shape: int, std: float = 1.0) -> Tensor:
        return (torch.randn(*shape, device=self.device) * std).to(torch.bfloat16).to(self.dtype)

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(self.device)

    def counts(self, *counts: int) -> tuple[int, ...]:
        """Under the interpreter many is few enough for seconds."""
        return tuple(sorted({min(count, 3) for count in counts})) if self.small else counts

    def copies(self, num_bytes: float, at_least: int, most: int = 512) -> int:
        """How many rotated inputs of num_bytes it takes to exceed at_least bytes."""
        return max(1 if at_least == 0 else 2, min(most, math.ceil(at_least / num_bytes)))

    def with_config(self, operation: str, config: Any) -> Setting:
        return replace(self, configs={**self.configs, operation: config})


def real_setting(configs: Mapping[str, Any] | None = None) -> Setting:
    """The model on this machine's GPU, with `configs` in place of the shipped ones. Raises ConfigError for a GPU
    that the kernels do not serve."""
    capability = torch.cuda.get_device_capability()
    held = {**shipped_configs(capability), **(configs or {})}
    return Setting("cuda", False, torch.bfloat16, held, capability=capability)


def absent_setting(capability: tuple[int, int], configs: Mapping[str, Any] | None = None) -> Setting:
    """The model on a GPU that is not here: its cases' launches can be recorded and compiled."""
    held = {**shipped_configs(capability), **(configs or {})}
    return Setting("meta", False, torch.bfloat16, held, capability=capability)


def small_setting() -> Setting:
    """Every case at sizes for the interpreter, on a CPU."""
    configs = shipped_configs((9, 0))
    linear, decode = configs["bf16_linear"], configs["mla_decode"]
    configs["bf16_linear"] = replace(linear, rows=16, depth=32, fma_elements=1024, max_fma_tokens=2)
    configs["fp8_linear"] = replace(configs["fp8_linear"], rows=16, depth=32, fma_elements=1024, max_fma_tokens=2)
    single, several = replace(decode.single, rows=16), replace(decode.several, rows=16)
    configs["mla_decode"] = replace(
        decode, single=single, several=several, fp8_tiles=(single, several), max_splits=4
    )
    configs["mla_prefill"] = replace(configs["mla_prefill"], queries=16, keys=16)
    for name in ("sampling", "penalties", "token_logprobs"):
        configs[name] = replace(configs[name], stretch=128)
    configs["vision_attention"] = replace(configs["vision_attention"], queries=16, keys=16)
    many = replace(configs["nvfp4_linear"].many, rows=16, columns=32, depth=32)
    configs["nvfp4_linear"] = replace(configs["nvfp4_linear"], many=many, max_few=4)
    pairs = tuple(replace(pair, gate_up=many, down=many) for pair in configs["moe_experts"].many)
    route = replace(configs["moe_experts"].route, max_vector=3)
    configs["moe_experts"] = replace(configs["moe_experts"], many=pairs, w4a4=pairs, max_few=4, route=route)
    return Setting(
        "cpu", True, torch.float32, configs, hidden=64, query=64, heads=2, vocab=300, inner=32, experts=8, layers=1,
        pdl=False,
    )  # fmt: skip


def rotation_of(s: Setting, num_tokens: int) -> Tensor:
    positions = torch.arange(num_tokens, device=s.device) * 37
    return rope.rotation(positions, torch.logspace(0, -5, ROPE // 2, device=s.device))


def turned(x: Tensor, rotation: Tensor) -> Tensor:
    """x [T, .., P] float64, rotated."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    rotation = rotation.to(torch.complex128)
    while rotation.dim() < pairs.dim():
        rotation = rotation.unsqueeze(-2)
    return torch.view_as_real(pairs * rotation).flatten(-2)


def normed(x: Tensor) -> Tensor:
    """x [.., D] float64, normalised, without a weight."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def tables_of(s: Setting, seq_lens: list[int], num_blocks: int) -> Tensor:
    """Block tables [R, B] int32 in which no request's blocks are neighbours."""
    width = math.ceil(max(seq_lens) / BLOCK_SIZE)
    order = torch.randperm(num_blocks)
    table = torch.zeros(len(seq_lens), width, dtype=torch.int32)
    begin = 0
    for row, seq_len in enumerate(seq_lens):
        count = math.ceil(seq_len / BLOCK_SIZE)
        table[row, :count] = order[begin : begin + count]
        begin += count
    return table.to(s.device)


def random_pool(s: Setting, num_blocks: int, kv: Precision) -> Tensor:
    """A cache of one layer, full of latents."""
    latents = s.randn(num_blocks, BLOCK_SIZE, LATENT + ROPE)
    if kv == "bf16":
        return latents
    pool = torch.empty(num_blocks, BLOCK_SIZE, latent_pool.fp8_slot_bytes(LATENT), dtype=torch.uint8, device=s.device)
    rows = latents.flatten(0, 1)
    latent_write.latent_write(pool, torch.arange(len(rows), device=s.device), rows[:, :LATENT], rows[:, LATENT:])
    return pool


def slot_bytes(kv: Precision) -> int:
    """Of one token's latent."""
    return 2 * (LATENT + ROPE) if kv == "bf16" else latent_pool.fp8_slot_bytes(LATENT)


def latents_of(pool: Tensor, table: Tensor, seq_len: int) -> Tensor:
    return latent_pool.read_blocks(pool, table[: math.ceil(seq_len / BLOCK_SIZE)].long())[:seq_len]
