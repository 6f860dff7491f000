"""What a run of `bench kernels` on an H200 says of a GB10: always "projected", never measured.

Owns the formula. A kernel takes the longest of
- its bytes at 240 GB/s, the best that others have shown of the 273 that the bus has;
- where arithmetic bounded it on the H200, its time there x 2.18 = (132 SMs x 1.98 GHz) / (48 SMs x 2.5 GHz);
- its matrix products at 61 TFLOP/s: 48 SMs x 2.5 GHz x 512 a clock, mma.sync of bfloat16 with float32 sums (an RTX
  5090 of the same architecture: 209.5 TFLOP/s of 170 SMs at 2.41 GHz). An H200's tensor cores are 16 times as fast,
  not 2.18 times, so that this is what bounds prompts;
and 2 us more for each launch inside a graph (the machine's figures are those of memory/projection). No tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkstral.memory.projection import GB10_BYTES_PER_S, GB10_TENSOR_FLOPS, LAUNCH_US, PROJECTED

ARITHMETIC_RATIO = 2.18
# On the H200: a kernel that moves half of what memory allows is bound by it; one of so few microseconds a launch, by
# the launch. What remains is bound by arithmetic.
MEMORY_BOUND_SHARE = 0.5
LATENCY_BOUND_US = 4.0
NUM_LAYERS = 36


@dataclass(frozen=True, slots=True)
class Projection:
    """One kernel's figures: measured on the machine of the run, and projected to a GB10."""

    operation: str
    name: str
    measured_us: float
    bound: str  # what bounded it where it was measured: memory, launch, arithmetic
    launches: int
    bytes: float
    projected_us: float
    projected_bound: str


def project_row(row: Mapping[str, Any]) -> Projection:
    """A row of `bench kernels` with a time."""
    launches = row["launches"]
    if row["bandwidth_share"] >= MEMORY_BOUND_SHARE:
        bound = "memory"
    else:
        bound = "launch" if row["us"] / launches <= LATENCY_BOUND_US else "arithmetic"
    terms = {
        "memory": row["bytes"] / GB10_BYTES_PER_S * 1e6,
        "arithmetic": row["us"] * ARITHMETIC_RATIO if bound == "arithmetic" else 0.0,
        "tensor cores": row.get("tensor_flops", 0.0) / GB10_TENSOR_FLOPS * 1e6,
    }
    longest = max(terms, key=lambda name: terms[name])
    return Projection(
        row["operation"], row["name"], row["us"], bound, launches, row["bytes"],
        projected_us=terms[longest] + LAUNCH_US * launches,
        projected_bound="launch" if terms[longest] < LAUNCH_US * launches else longest,
    )  # fmt: skip


Recipe = Sequence[tuple[str, str, int]]  # operation, name, how many of it


def decode_recipe(batch: int, context: int) -> Recipe:
    """The kernels of one decode step."""
    m = f"{batch} tokens"
    layer = (
        ("rms_norm", f"after experts, {m}"), ("bf16_linear", f"a, {m}"), ("latent_write", m),
        ("bf16_linear", f"q_b, {m}"), ("mla_decode", f"absorb, {m}"), ("mla_decode", f"attend, {batch} x {context}"),
        ("bf16_linear", f"o, {m}"), ("rms_norm", f"after o, {m}"), ("moe_experts", f"block, {m}"),
    )  # fmt: skip
    end = (
        ("embed", m), ("rms_norm", f"before head, {m}"), ("bf16_linear", f"head, {m}"),
        ("sampling", f"greedy, {batch} rows"),
    )  # fmt: skip
    return [*((*kernel, NUM_LAYERS) for kernel in layer), *((*kernel, 1) for kernel in end)]


def prefill_recipe(num_tokens: int) -> Recipe:
    """The kernels of a prompt in one chunk."""
    m = f"{num_tokens} tokens"
    layer = (
        ("rms_norm", f"after experts, {m}"), ("library", f"a, {m}"), ("latent_write", m), ("library", f"q_b, {m}"),
        ("rope", f"turn queries, {m}"), ("mla_prefill", f"{num_tokens} of {num_tokens}"), ("library", f"o, {m}"),
        ("rms_norm", f"after o, {m}"), ("moe_experts", f"block, {m}"),
    )  # fmt: skip
    end = (("bf16_linear", "head, 1 tokens"), ("sampling", "greedy, 1 rows"))
    return [*((*kernel, NUM_LAYERS) for kernel in layer), *((*kernel, 1) for kernel in end)]


@dataclass(frozen=True, slots=True)
class Step:
    """A whole step of the model, as the sum of its kernels. None where a kernel was not measured."""

    name: str
    num_tokens: int  # that it gives (decode) or takes in (prefill)
    measured_ms: float | None
    projected_ms: float | None
    projected_tok_s: float | None
    missing: tuple[str, ...]


def project_step(name: str, num_tokens: int, recipe: Recipe, of: Mapping[tuple[str, str], Projection]) -> Step:
    missing = tuple(f"{operation}: {kernel}" for operation, kernel, _ in recipe if (operation, kernel) not in of)
    if missing:
        return Step(name, num_tokens, None, None, None, missing)
    measured = sum(count * of[operation, kernel].measured_us for operation, kernel, count in recipe) / 1e3
    projected = sum(count * of[operation, kernel].projected_us for operation, kernel, count in recipe) / 1e3
    return Step(name, num_tokens, measured, projected, num_tokens / projected * 1e3, ())


def project(run: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `bench project` for a run of `bench kernels`."""
    projections = [project_row(row) for row in run["rows"] if "us" in row and row["variant"] == "shipped"]
    of = {(each.operation, each.name): each for each in projections}
    steps = [
        project_step(f"decode, batch {batch}, {context} tokens of context", batch, decode_recipe(batch, context), of)
        for context in (300, 30_000)
        for batch in (1, 2, 4, 8, 16, 32)
    ]
    steps += [project_step(f"prefill of {n} tokens", n, prefill_recipe(n), of) for n in (1024, 4096, 8192)]
    return {
        "schema_version": 1,
        "kind": "bench project",
        "label": PROJECTED,
        "from": {name: run.get(name) for name in ("device", "commit", "time", "versions", "bandwidth")},
        "assumptions": {
            "gb10_bytes_per_s": GB10_BYTES_PER_S,
            "gb10_tensor_flop_per_s": GB10_TENSOR_FLOPS,
            "arithmetic_ratio": ARITHMETIC_RATIO,
            "launch_us": LAUNCH_US,
        },
        "rows": [asdict(each) for each in projections],
        "steps": [asdict(step) for step in steps],
    }
