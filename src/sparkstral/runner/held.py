"""What an engine holds: its tensors by the names of the plan's lines, and what the system says that it took.

Owns the walk over the objects that hold tensors and which of their attributes belong to which line; a tensor that no
rule knows is counted as "other", so that what is new shows. Must not know the plan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparkstral.memory.probe import read_host

OTHER = "other"
# The first that is found in the path of attributes to a tensor.
_RULES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\b_?encoder\._pool\b", "image embeddings"),
        (r"\b_?encoder\b", "vision and projector"),
        (r"draft|eagle", "draft head"),
        (r"workspace\b|logprobs\b|\b_(records|rotations|query_scales)\b", "workspaces"),
        (r"\b_(records|logprobs|logprobs_workspace|prompt_logprobs)\b", "workspaces"),
        (r"\b_buffers\b", "step buffers"),
        (r"\b_?latent_pool\b", "KV pool"),
        (r"\b_?embed_tokens\b", "token embedding"),
        (r"\b_?lm_head\b", "output head"),
        (r"\b_?router\b", "routers"),
        (r"\b_?shared_", "shared experts"),
        (r"\b_?(gate_up|down)\b", "routed experts"),
        (r"\bw_u[kv]\b", "w_uk, w_uv"),
        (r"\b_attention\.|\b(a_proj|q_a_norm|kv_a_norm|q_b_proj|kv_b_proj|o_proj)\b", "attention"),
        (r"norm\b", "layer and final norms"),
    )
)
_OURS = "sparkstral."


@dataclass(frozen=True, slots=True)
class Taken:
    """Of a GPU: in use by anybody, and what of it PyTorch's allocator holds; where it shares the host's memory, in use
    by the kernel's count, which leaves droppable page cache out. Of the CPU: this process' resident size."""

    used_bytes: int
    reserved_bytes: int

    @property
    def beside_bytes(self) -> int:
        """In use and not PyTorch's: contexts, compiled kernels, graphs, other programs."""
        return self.used_bytes - self.reserved_bytes


def taken_now(device: torch.device) -> Taken:
    if device.type != "cuda":
        return Taken(resident_bytes(), 0)
    torch.cuda.synchronize(device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    if torch.cuda.get_device_properties(device).is_integrated and (host := read_host()) is not None:
        free_bytes, total_bytes = host.available_bytes, host.total_bytes
    return Taken(total_bytes - free_bytes, torch.cuda.memory_reserved(device))


def reserved_bytes(device: torch.device) -> int:
    """What PyTorch's allocator holds for tensors that are there and for graphs; what it only keeps is given back."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Of this process; 0 where the kernel does not tell."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def held_bytes(holders: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of all tensors that `holders` reach through dataclasses, lists, mappings and objects of ours, by the names
    of the plan's lines; memory that several share is counted once."""
    seen: set[int] = set()
    found: dict[str, int] = {}
    for path, tensor in _tensors(holders, "", set()):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in seen:
            continue
        if address:  # 0: a tensor without memory, as tests plan with
            seen.add(address)
        name = next((name for rule, name in _RULES if rule.search(path)), OTHER)
        found[name] = found.get(name, 0) + storage.nbytes()
    return found


def split_shared_expert(found: dict[str, int], num_routed_experts: int) -> dict[str, int]:
    """Where the shared expert lies behind the routed ones in one storage, its part is told by itself."""
    if "shared experts" in found or "routed experts" not in found:
        return found
    shared = found["routed experts"] // (num_routed_experts + 1)
    return {**found, "routed experts": found["routed experts"] - shared, "shared experts": shared}


def _tensors(value: Any, path: str, visited: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    if id(value) in visited:
        return
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(str(index), part) for index, part in enumerate(value)]
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif type(value).__module__.startswith(_OURS) and hasattr(value, "__dict__"):
        parts = list(vars(value).items())
    else:
        return
    visited.add(id(value))
    for name, part in parts:
        yield from _tensors(part, f"{path}.{name}" if path else name, visited)
