"""The mixture of experts: routing, the block for few and for many tokens, and NVFP4 weights on their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkstral.bench.cases.case import Case, Prepared, compare
from sparkstral.bench.cases.dense import DECODE_TOKENS, PREFILL_TOKENS
from sparkstral.bench.cases.setting import SLOTS, TOP_K, Setting
from sparkstral.kernels import nvfp4_linear, nvfp4_quantize
from sparkstral.kernels.moe_experts import triton_few, triton_kernel, triton_many, triton_matrix
from sparkstral.kernels.moe_experts.triton_few import FewSpecs
from sparkstral.kernels.moe_experts.triton_many import ManySpecs
from sparkstral.kernels.moe_experts.triton_matrix import MatrixSpecs
from sparkstral.kernels.moe_experts.triton_w4a4 import InputScales
from sparkstral.kernels.moe_route.triton_kernel import FewRouting, ManyRouting, max_items, route_few, route_many
from sparkstral.kernels.nvfp4_linear import triton_kernel as linear_kernel
from sparkstral.kernels.nvfp4_linear.packing import PackedWeight, reorder, restore

Routing = FewRouting | ManyRouting
MAX_CHECKED = 256  # tokens: a GB10 multiplies float64 slowly
BYTES_A_WEIGHT = 0.5625  # a code and a sixteenth of a scale


@dataclass(frozen=True)
class Layer:
    router: Tensor
    gate_up: PackedWeight
    down: PackedWeight


def draw(s: Setting, *shape: int, parts: int) -> PackedWeight:
    """[.., N, K]: any codes, scales from 2^-2 to 4; products of unit activations have a deviation near 1."""
    *lead, rows, columns = shape
    size = (*lead, rows, columns // 16)
    codes = torch.randint(-(2**63), 2**63 - 1, size, device=s.device)
    scale = torch.randint(0x28, 0x49, size, dtype=torch.uint8, device=s.device).view(torch.float8_e4m3fn)
    factor = (0.5 + torch.rand(*lead, parts, device=s.device)) / (4.5 * columns**0.5)
    return PackedWeight(codes, scale, factor)


def layer(s: Setting, index: int) -> Layer:
    if index not in s.kept:
        torch.manual_seed(index)
        s.kept[index] = Layer(
            s.randn(s.experts, s.hidden, std=1.5 / s.hidden**0.5),
            draw(s, s.experts + 1, 2 * s.inner, s.hidden, parts=2),
            draw(s, s.experts + 1, s.hidden, s.inner, parts=1),
        )
    found: Layer = s.kept[index]
    return found


def tokens(s: Setting, count: int, seed: int) -> Tensor:
    torch.manual_seed(1000 + seed)
    return s.randn(count, s.hidden)


def dense(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """[N, K] of one matrix."""
    (parts,) = weight.factor.shape
    rows, groups = weight.codes.shape
    packed = restore(weight.codes).view(parts, rows // parts, groups * 8)
    scale = weight.scale.view(parts, rows // parts, groups)
    return nvfp4_linear.dequantize(packed, scale, 1 / weight.factor, torch.float32).flatten(0, 1).to(dtype)


def expert_of(weight: PackedWeight, expert: int) -> PackedWeight:
    return PackedWeight(weight.codes[expert], weight.scale[expert], weight.factor[expert])


def by_experts(
    x: Tensor, ids: Tensor, weights: Tensor, of: Layer, residual: Tensor, dtype: torch.dtype,
    scales: InputScales | None = None,
) -> Tensor:
    """residual + the block, in `dtype` with PyTorch's own products, each expert in turn. With `scales` the routed
    experts read what NVFP4 leaves of activations."""

    def read(inner: Tensor, of_product: Tensor | None, expert: int) -> Tensor:
        if of_product is None or expert == len(of_product):
            return inner
        scale = of_product[expert]
        return nvfp4_quantize.dequantize(*nvfp4_quantize.quantize(inner, scale), scale).to(dtype)

    x, pairs = x.to(dtype), torch.zeros(*ids.shape, x.shape[1], dtype=dtype, device=x.device)
    for expert in sorted(set(ids.flatten().tolist())):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        inner = read(x[token], None if scales is None else scales.x, expert)
        gate, up = F.linear(inner, dense(expert_of(of.gate_up, expert), dtype)).chunk(2, dim=-1)
        inner = read(F.silu(gate) * up, None if scales is None else scales.h, expert)
        pairs[token, slot] = F.linear(inner, dense(expert_of(of.down, expert), dtype))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    total = (pairs.to(wide) * weights[..., None].to(wide)).sum(1)
    return residual.to(dtype) + total.to(dtype)


def routed_bytes(s: Setting, distinct: float, product: str = "block") -> float:
    """Of `distinct` experts' weights, in codes and scales."""
    rows = {"gate_up": 2 * s.hidden * s.inner, "down": s.hidden * s.inner}
    return distinct * BYTES_A_WEIGHT * sum(rows[name] for name in rows if product in (name, "block"))


def workspace(s: Setting, max_tokens: int) -> triton_kernel.MoeWorkspace:
    made = triton_kernel.MoeWorkspace.allocate(
        s.configs["moe_experts"], max_tokens, s.hidden, s.inner, s.experts, TOP_K, s.place
    )
    if not s.small:
        return made
    wide = {name: getattr(made.many, name).float() for name in ("h", "y", "gate_up", "down")}
    return replace(made, many=replace(made.many, **wide))


def rotated(s: Setting, count: int, at_least: int) -> list[tuple[Layer, Tensor]]:
    """Different layers and tokens: twice as many as there are layers."""
    if not at_least:
        return [(layer(s, 0), tokens(s, count, 0))]
    return [(layer(s, i % s.layers), tokens(s, count, i)) for i in range(2 * s.layers)]


def mean_distinct(s: Setting, ids: list[Tensor]) -> float:
    """Experts that a call reads, the shared one included."""
    if s.device == "meta":
        return SLOTS
    return sum(len(set(some.flatten().tolist())) for some in ids) / len(ids)


def block_case(s: Setting, count: int, at_least: int) -> Prepared:
    config = s.configs["moe_experts"]
    space, residual = workspace(s, max(count, config.max_few)), tokens(s, count, 99)
    out, is_few = torch.empty_like(residual), count <= config.max_few

    def run(of: Layer, x: Tensor, to: Tensor, residual: Tensor = residual) -> Tensor:
        triton_kernel.moe_block(
            x, of.router, of.gate_up, of.down, residual, 1.0, to, workspace=space, config=config, pdl=s.pdl
        )
        return (space.few_routing if is_few else space.many_routing).ids[: len(x)]

    def check() -> dict[str, Any]:
        of, x = layer(s, 0), tokens(s, count, 7)
        ids = run(of, x, out).long().clone()
        weights = (space.few_routing if is_few else space.many_routing).weights[:count].clone()
        rows = torch.linspace(0, count - 1, min(count, MAX_CHECKED)).long().to(s.device)
        few = (x[rows], ids[rows], weights[rows], of, residual[rows])
        plain, exact = (by_experts(*few, dtype) for dtype in (torch.bfloat16, torch.float64))
        found = compare(out[rows], plain, exact)
        first = out.clone()
        run(of, x, out.fill_(float("nan")))
        found["holds"] = {"repeats": torch.equal(out, first)}
        if 1 < count <= config.max_few:
            # Alone, or in the smallest batch of the same form, from the last on.
            fewest = 1 if count <= config.route.max_vector else config.route.max_vector + 1
            alone = torch.empty_like(x[:fewest])
            run(of, x.flip(0)[:fewest].contiguous(), alone, residual.flip(0)[:fewest].contiguous())
            found["holds"]["alone as in the batch"] = torch.equal(alone, first.flip(0)[:fewest])
        return found

    inputs = rotated(s, count, at_least)
    ids = [run(of, x, out).clone() for of, x in inputs]
    # Few: three launches, or four where items share experts; many: three of routing, five of the shared expert,
    # two products, a sum.
    launches = 11 if not is_few else 3 if count <= min(config.few.token_major_max, config.route.max_vector) else 4
    flops = 0 if is_few else 2 * SLOTS * count * 3 * s.hidden * s.inner
    moved = routed_bytes(s, mean_distinct(s, ids)) + 2 * s.experts * s.hidden + 3 * count * s.hidden * 2
    return Prepared([partial(run, of, x, out) for of, x in inputs], moved, flops, launches, check)


def w4a4_case(s: Setting, count: int, at_least: int) -> Prepared:
    """Scales for inputs of up to 5; experts of one deviation make inner values of up to 10."""
    config, space = s.configs["moe_experts"], workspace(s, count)
    residual, out = tokens(s, count, 99), torch.empty(count, s.hidden, dtype=s.dtype, device=s.device)
    scales = InputScales(*(torch.full((s.experts,), 2688 / most, device=s.device) for most in (5.0, 10.0)))

    def run(of: Layer, x: Tensor) -> None:
        triton_kernel.moe_block(
            x, of.router, of.gate_up, of.down, residual, 1.0, out, workspace=space, config=config, pdl=s.pdl,
            input_scales=scales,
        )  # fmt: skip

    def check() -> dict[str, Any]:
        of, x = layer(s, 0), tokens(s, count, 7)
        run(of, x)
        rows = torch.linspace(0, count - 1, min(count, MAX_CHECKED)).long().to(s.device)
        ids, weights = space.many_routing.ids[:count].long(), space.many_routing.weights[:count]
        few = (x[rows], ids[rows], weights[rows], of, residual[rows])
        plain, exact = (by_experts(*few, dtype, scales) for dtype in (torch.bfloat16, torch.float64))
        return compare(out[rows], plain, exact)

    inputs = rotated(s, count, at_least)
    moved = routed_bytes(s, s.experts + 1) + 3 * count * s.hidden * 2
    flops = 2 * SLOTS * count * 3 * s.hidden * s.inner
    return Prepared([partial(run, of, x) for of, x in inputs], moved, flops, 13, check)


def route_case(s: Setting, count: int, at_least: int) -> Prepared:
    config = s.configs["moe_experts"]
    few = count <= config.max_few
    routing: Routing = (
        FewRouting.allocate(config.max_few, s.hidden, s.experts, TOP_K, s.place)
        if few
        else ManyRouting.allocate(count, s.experts, TOP_K, s.place)
    )

    def route(of: Layer, x: Tensor) -> None:
        if isinstance(routing, FewRouting):
            route_few(x, of.router, 1.0, routing, config=config.route, pdl=s.pdl)
        else:
            route_many(x, of.router, 1.0, config.many[0].gate_up.rows, routing, pdl=s.pdl)

    def check() -> dict[str, Any]:
        of, x = layer(s, 0), tokens(s, count, 7)
        route(of, x)
        ids, weights = routing.ids[:count].long(), routing.weights[:count]
        exact = (x.double() @ of.router.double().T).softmax(-1)
        best = exact.topk(TOP_K).values
        chosen = exact.gather(1, ids[:, :TOP_K])
        plain = F.linear(x.bfloat16(), of.router.bfloat16()).float().softmax(-1).gather(1, ids[:, :TOP_K])
        found = compare(
            weights[:, :TOP_K], plain / plain.sum(-1, keepdim=True), chosen / chosen.sum(-1, keepdim=True)
        )  # fmt: skip
        # Which of two experts whose probabilities differ by less than this comes first is a matter of rounding.
        found["wrong_experts"] = int(((best - chosen).abs() > 1e-5).sum())
        found["holds"] = {
            "the shared expert is last, with weight 1": bool((ids[:, TOP_K] == s.experts).all())
            and bool((weights[:, TOP_K] == 1).all()),
            "each pair is listed once, by its expert": pairs_are_listed(routing, count, s.experts),
        }
        return found

    inputs = rotated(s, count, at_least)
    return Prepared(
        [partial(route, of, x) for of, x in inputs], 2 * (s.experts + count) * s.hidden, num_launches=1 if few else 3,
        check=check,
    )  # fmt: skip


def pairs_are_listed(routing: Routing, count: int, experts: int) -> bool:
    """Whether what the experts' kernels walk holds every (token, expert) pair once, under its expert."""
    ids = routing.ids[:count].flatten()
    if isinstance(routing, FewRouting):
        found: dict[int, int] = {}
        for expert, size, *pairs in routing.items[: max_items(count, experts, TOP_K)].tolist():
            for pair in pairs[:size]:
                if pair in found:
                    return False
                found[pair] = expert
        return found == dict(enumerate(ids.tolist()))
    pairs = routing.pairs[: count * SLOTS].long()
    starts = routing.starts[: experts + 2].tolist()
    sorted_ids = ids[pairs].tolist()
    listed = [expert for expert in range(experts + 1) for _ in range(starts[expert], starts[expert + 1])]
    return torch.equal(pairs.sort().values, torch.arange(len(pairs), device=pairs.device)) and sorted_ids == listed


def few_specs(s: Setting) -> FewSpecs:
    return FewSpecs(s.hidden, s.inner, SLOTS, s.configs["moe_experts"].few, residual=True, ptx=s.ptx, pdl=s.pdl)


def few_routings(s: Setting, count: int, at_least: int) -> list[tuple[Layer, FewRouting]]:
    config, found = s.configs["moe_experts"], []
    for of, x in rotated(s, count, at_least):
        routing = FewRouting.allocate(config.max_few, s.hidden, s.experts, TOP_K, s.place)
        route_few(x, of.router, 1.0, routing, config=config.route, pdl=False)
        found.append((of, routing))
    return found


def few_product_case(s: Setting, count: int, product: str, at_least: int) -> Prepared:
    """One of the block's products on its own, for choosing its configuration."""
    config = s.configs["moe_experts"]
    space, specs, residual = workspace(s, config.max_few), few_specs(s), tokens(s, count, 99)
    routings, out = few_routings(s, count, at_least), torch.empty_like(residual)
    distinct = mean_distinct(s, [routing.ids[:count] for _, routing in routings])
    moved = routed_bytes(s, distinct, product)
    gate_ups: list[Callable[[], None]]
    if count > config.route.max_vector:
        matrix = MatrixSpecs(
            s.hidden, s.inner, s.experts, SLOTS, config.matrix.gate_up, config.matrix.down, ptx=s.ptx, pdl=s.pdl
        )
        gate_ups = [
            partial(triton_matrix.gate_up_matrix, of.gate_up, r, count, space.few, matrix, down=of.down)
            for of, r in routings
        ]
        gate_ups[0]()
        downs = [partial(triton_matrix.down_matrix, of.down, r, count, space.few, matrix) for of, r in routings]
        return Prepared(gate_ups if product == "gate_up" else downs, moved)
    gate_ups = [partial(triton_few.gate_up_few, of.gate_up, r, count, space.few, specs) for of, r in routings]
    if product == "gate_up":
        return Prepared(gate_ups, moved)
    gate_ups[0]()
    downs = [partial(triton_few.down_few, of.down, r, residual, out, space.few, specs) for of, r in routings]
    return Prepared(downs, moved, num_launches=1 if count <= config.few.token_major_max else 2)


def many_product_case(s: Setting, count: int, product: str, at_least: int) -> Prepared:
    """Likewise for many tokens."""
    config = s.configs["moe_experts"]
    tiles = next(pair for pair in config.many if count <= pair.max_tokens)
    space, residual = workspace(s, count), tokens(s, count, 99)
    out = torch.empty_like(residual)
    specs = ManySpecs(
        s.hidden, s.inner, s.experts, SLOTS, tiles.gate_up, tiles.down, residual=True, ptx=s.ptx, pdl=s.pdl
    )
    calls: list[Callable[[], None]] = []
    for of, x in rotated(s, count, at_least)[:3]:
        routing = ManyRouting.allocate(count, s.experts, TOP_K, s.place)
        route_many(x, of.router, 1.0, tiles.gate_up.rows, routing, pdl=False)
        if product == "gate_up":
            calls.append(partial(triton_many.gate_up_many, x, of.gate_up, routing, space.many, specs))
        else:
            calls.append(partial(triton_many.down_many, of.down, routing, residual, out, space.many, specs))
    triton_many.gate_up_many(x, of.gate_up, routing, space.many, specs)  # what down reads is no noise
    share = 2 if product == "gate_up" else 1
    flops = 2 * TOP_K * count * share * s.hidden * s.inner
    return Prepared(calls, routed_bytes(s, s.experts, product), flops)


def nvfp4_case(s: Setting, rows: int, columns: int, count: int, at_least: int) -> Prepared:
    """The shared expert's weights as plain products."""
    config = s.configs["nvfp4_linear"]
    weights = [draw(s, rows, columns, parts=1) for _ in range(s.copies(rows * columns * BYTES_A_WEIGHT, at_least, 32))]
    x = s.randn(count, columns)
    space = linear_kernel.LinearWorkspace.allocate(count, columns, s.place)

    def product(weight: PackedWeight) -> Tensor:
        return linear_kernel.nvfp4_linear(x, weight, workspace=space, config=config, pdl=s.pdl)

    def check() -> dict[str, Any]:
        ours = product(weights[0])
        plain, exact = (F.linear(x.to(t), dense(weights[0], t)) for t in (torch.bfloat16, torch.float64))
        return {**compare(ours, plain, exact), "holds": {"repeats": torch.equal(ours, product(weights[0]))}}

    few = count <= config.max_few
    moved = rows * columns * BYTES_A_WEIGHT + 2 * count * (rows + columns)
    return Prepared(
        [partial(product, weight) for weight in weights], moved, 0 if few else 2 * count * rows * columns,
        num_launches=2 if few else 1, check=check,
    )  # fmt: skip


def reorder_case(s: Setting, at_least: int) -> Prepared:
    """Codes into the kernels' order, in place: done once, when a checkpoint is loaded."""
    size = (8 if s.small else 64, 2 * s.inner, s.hidden // 2)
    packed = torch.randint(0, 256, size, dtype=torch.uint8, device=s.device)

    def check() -> dict[str, Any]:
        sample = packed[:1].clone()
        expected = reorder(sample)
        return {"wrong_words": int((linear_kernel.reorder_(sample) != expected).sum())}

    return Prepared([partial(linear_kernel.reorder_, packed)] * 2, 2 * packed.nbytes, check=check)


def expert_cases(s: Setting) -> list[Case]:
    few = (1, 3, 4) if s.small else (*DECODE_TOKENS, 3, 17, 64)
    many = (5,) if s.small else (70, 600, *PREFILL_TOKENS)
    found = [Case("moe_experts", f"block, {n} tokens", partial(block_case, s, n)) for n in (*few, *many)]
    if s.configs["moe_experts"].w4a4:
        counts = (9,) if s.small else (600, 4096)
        found += [Case("moe_experts", f"block, quantised, {n} tokens", partial(w4a4_case, s, n)) for n in counts]
    found += [Case("moe_route", f"{n} tokens", partial(route_case, s, n)) for n in (*few, *many)]
    for rows, columns in ((2 * s.inner, s.hidden), (s.hidden, s.inner)):
        found += [
            Case("nvfp4_linear", f"{rows} x {columns}, {n} tokens", partial(nvfp4_case, s, rows, columns, n))
            for n in ((1, 3, 5) if s.small else (1, 3, 8, 32, 1024))
        ]
    return [*found, Case("nvfp4_linear", "reorder", partial(reorder_case, s))]
