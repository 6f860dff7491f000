"""Triton form of kernels/moe_route; the contract stands in the folder's `__init__`.

Few tokens (decode), one launch: `_route_few`'s programs share the router's rows (and rewrite x as scaled float16 on
the side); the last to finish, known by a counter, takes the softmax, chooses, and sorts the (token, expert) pairs
into work items. Many tokens (prefill), three launches: `_route_many` a block of tokens with its choices and each
pair's rank among the block's pairs of the same expert, `_plan` the running sums over blocks and experts, `_place`
the pairs in order of expert and token. Nothing is read on the host, no sum depends on the order of programs.

A pair is token · (K + 1) + j: j < K the chosen experts by falling probability, j = K the shared expert, which is the
last of the stack and has weight 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstral.kernels.grid_dependency import let_next_start, wait_for_inputs
from sparkstral.kernels.kernel_spec import KernelSpec
from sparkstral.kernels.nvfp4_linear.codes import dot_bfloat16, quarter_row, scale_row
from sparkstral.kernels.tiles import tile

ITEM_TOKENS = 4  # the most pairs of a work item for the ordinary lanes
MATRIX_TOKENS = 8  # ... for the matrix unit
ITEM_FIELDS = 16  # int32 of a work item: expert, number of pairs, up to eight pairs, six unused
BLOCK_TOKENS = 64  # tokens of a program, many tokens


@dataclass(frozen=True, slots=True)
class RouteConfig:
    """How `_route_few` is cut. The same for every number of tokens, as it decides the order of sums."""

    rows: int  # router rows of a program
    columns: int  # read at once
    num_warps: int
    # Tokens up to which the experts' products run on the ordinary lanes; more, as far as few are few, take the matrix
    # unit: their x stays bfloat16, and their items have up to MATRIX_TOKENS pairs.
    max_vector: int = 4


CONFIGS = {
    # 32 programs read 32 KiB each, 16 bytes a thread and row: one wave, whose time is that of two reads from memory.
    (9, 0): RouteConfig(rows=4, columns=1024, num_warps=4),
    (12, 1): RouteConfig(rows=4, columns=1024, num_warps=4),
}


def max_items(num_tokens: int, num_experts: int, top_k: int, item_tokens: int = ITEM_TOKENS) -> int:
    """The most work items that `num_tokens` tokens can need, the shared expert's included."""
    pairs = num_tokens * top_k
    full = (pairs + (item_tokens - 1) * num_experts) // item_tokens
    return -(-num_tokens // item_tokens) + min(pairs, full)


@dataclass(frozen=True, slots=True)
class FewRouting:
    """What routing few tokens leaves for the experts; for up to `num_tokens`, a power of two; layers share it."""

    x: Tensor  # [T, 4, H/16, 4] float16: quarter q of group g of token t, scaled to below 2^15; matrix: bfloat16, as is
    x_scale: Tensor  # [T, H/16] float32: what x was divided by, · 2^14; matrix: not written
    logits: Tensor  # [T, E] float32
    ids: Tensor  # [T, K + 1] int32
    weights: Tensor  # [T, K + 1] float32
    items: Tensor  # [max_items, ITEM_FIELDS] int32; unused items are of expert 0 and have no pair
    by_expert: Tensor  # [2, E] int32: pairs of each expert, and its first item
    finished: Tensor  # [1] int32: programs of the running launch that are through; 0 between launches

    @classmethod
    def allocate(cls, num_tokens: int, hidden: int, num_experts: int, top_k: int, device: torch.device) -> FewRouting:
        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device=device)

        return cls(
            x=empty(num_tokens, 4, hidden // 16, 4, dtype=torch.float16),
            x_scale=empty(num_tokens, hidden // 16, dtype=torch.float32),
            logits=empty(num_tokens, num_experts, dtype=torch.float32),
            ids=empty(num_tokens, top_k + 1, dtype=torch.int32),
            weights=empty(num_tokens, top_k + 1, dtype=torch.float32),
            items=empty(max_items(num_tokens, num_experts, top_k), ITEM_FIELDS, dtype=torch.int32),
            by_expert=empty(2, num_experts, dtype=torch.int32),
            finished=torch.zeros(1, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class ManyRouting:
    """What routing many tokens leaves for the experts; for up to `num_tokens`; layers share it."""

    ids: Tensor  # [T, K + 1] int32
    weights: Tensor  # [T, K + 1] float32
    ranks: Tensor  # [T, K] int32: pairs of the same block and expert that come before
    block_counts: Tensor  # [blocks, E] int32: pairs of a block; then, those of earlier blocks
    starts: Tensor  # [E + 2] int32: first sorted position of each expert, the shared one too, and the end
    tile_starts: Tensor  # [E + 2] int32: the same in tiles of rows
    pairs: Tensor  # [T · (K + 1)] int32: by expert, then token

    @classmethod
    def allocate(cls, num_tokens: int, num_experts: int, top_k: int, device: torch.device) -> ManyRouting:
        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device=device)

        return cls(
            ids=empty(num_tokens, top_k + 1),
            weights=empty(num_tokens, top_k + 1, dtype=torch.float32),
            ranks=empty(num_tokens, top_k),
            block_counts=empty(triton.cdiv(num_tokens, BLOCK_TOKENS), num_experts),
            starts=empty(num_experts + 2),
            tile_starts=empty(num_experts + 2),
            pairs=empty(num_tokens * (top_k + 1)),
        )


@triton.jit
def _softmax(logits):
    """[T, E] -> [T, E]. NaN becomes 0: a sick row still chooses different experts, and its x keeps it sick."""
    above = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    probabilities = above / tl.sum(above, axis=1)[:, None]
    return tl.where(probabilities == probabilities, probabilities, 0.0)


@triton.jit
def _next_largest(probabilities, EXPERTS: tl.constexpr):
    """[T, E] -> the largest of each row, its id (of equal ones the lowest), and the rows without it."""
    value, index = tl.max(probabilities, axis=1, return_indices=True)
    taken = tl.arange(0, EXPERTS)[None, :] == index[:, None]
    return value, index, tl.where(taken, -1.0, probabilities)


@triton.jit
def _choose(probabilities, token, is_token, ids_ptr, weights_ptr, scaling, EXPERTS: tl.constexpr, TOP_K: tl.constexpr):
    """Write ids and weights of each token's TOP_K experts and of the shared one."""
    tl.static_assert(TOP_K == 4)
    v0, i0, rest = _next_largest(probabilities, EXPERTS)
    v1, i1, rest = _next_largest(rest, EXPERTS)
    v2, i2, rest = _next_largest(rest, EXPERTS)
    v3, i3, rest = _next_largest(rest, EXPERTS)
    total = v0 + v1 + v2 + v3 + 1e-20
    to = token * (TOP_K + 1)
    tl.store(ids_ptr + to, i0, mask=is_token)
    tl.store(ids_ptr + to + 1, i1, mask=is_token)
    tl.store(ids_ptr + to + 2, i2, mask=is_token)
    tl.store(ids_ptr + to + 3, i3, mask=is_token)
    tl.store(ids_ptr + to + 4, tl.full(i0.shape, EXPERTS, tl.int32), mask=is_token)
    tl.store(weights_ptr + to, v0 / total * scaling, mask=is_token)
    tl.store(weights_ptr + to + 1, v1 / total * scaling, mask=is_token)
    tl.store(weights_ptr + to + 2, v2 / total * scaling, mask=is_token)
    tl.store(weights_ptr + to + 3, v3 / total * scaling, mask=is_token)
    tl.store(weights_ptr + to + 4, tl.full(v0.shape, 1.0, tl.float32), mask=is_token)
    return i0, i1, i2, i3


@triton.jit
def _sort_few(
    ids_ptr, items_ptr, by_expert_ptr, num_tokens,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr, MAX_ITEMS: tl.constexpr,
    ITEM_TOKENS: tl.constexpr, ITEM_FIELDS: tl.constexpr,
):  # fmt: skip
    """Work items in order of expert, the shared expert's first (they are the longest)."""
    PAIRS: tl.constexpr = TOKENS * TOP_K
    STEP: tl.constexpr = PAIRS if PAIRS < 32 else 32  # pairs compared at once, for the registers' sake
    expert = tl.arange(0, EXPERTS)
    one = tl.arange(0, PAIRS)
    is_pair = one < num_tokens * TOP_K
    pair = one // TOP_K * (TOP_K + 1) + one % TOP_K
    key = tl.load(ids_ptr + pair, mask=is_pair, other=EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    rank = tl.zeros((PAIRS,), tl.int32)
    for start in range(0, num_tokens * TOP_K, STEP):
        other = start + tl.arange(0, STEP)
        other_key = tl.load(
            ids_ptr + other // TOP_K * (TOP_K + 1) + other % TOP_K, mask=other < num_tokens * TOP_K, other=EXPERTS
        )
        counts += tl.sum((other_key[:, None] == expert[None, :]).to(tl.int32), axis=0)
        before = (other_key[:, None] == key[None, :]) & (other[:, None] < one[None, :])
        rank += tl.sum(before.to(tl.int32), axis=0)
    shared_items = tl.cdiv(num_tokens, ITEM_TOKENS)
    num_items = tl.cdiv(counts, ITEM_TOKENS)
    tl.store(by_expert_ptr + expert, counts)
    tl.store(by_expert_ptr + EXPERTS + expert, shared_items + tl.cumsum(num_items, axis=0) - num_items)
    tl.debug_barrier()
    item = tl.load(by_expert_ptr + EXPERTS + key, mask=is_pair, other=0) + rank // ITEM_TOKENS
    count = tl.load(by_expert_ptr + key, mask=is_pair, other=0) - rank // ITEM_TOKENS * ITEM_TOKENS
    is_first = is_pair & (rank % ITEM_TOKENS == 0)
    tl.store(items_ptr + item * ITEM_FIELDS, key, mask=is_first)
    tl.store(items_ptr + item * ITEM_FIELDS + 1, tl.minimum(count, ITEM_TOKENS), mask=is_first)
    tl.store(items_ptr + item * ITEM_FIELDS + 2 + rank % ITEM_TOKENS, pair, mask=is_pair)
    token = tl.arange(0, TOKENS)
    to = token // ITEM_TOKENS * ITEM_FIELDS
    is_first = (token < num_tokens) & (token % ITEM_TOKENS == 0)
    tl.store(items_ptr + to, tl.full((TOKENS,), EXPERTS, tl.int32), mask=is_first)
    tl.store(items_ptr + to + 1, tl.minimum(num_tokens - token, ITEM_TOKENS), mask=is_first)
    tl.store(items_ptr + to + 2 + token % ITEM_TOKENS, token * (TOP_K + 1) + TOP_K, mask=token < num_tokens)
    rest = shared_items + tl.sum(num_items, axis=0) + tl.arange(0, triton.next_power_of_2(MAX_ITEMS))
    tl.store(items_ptr + rest * ITEM_FIELDS, tl.zeros_like(rest), mask=rest < MAX_ITEMS)
    tl.store(items_ptr + rest * ITEM_FIELDS + 1, tl.zeros_like(rest), mask=rest < MAX_ITEMS)


@triton.jit(do_not_specialize=["num_tokens"])
def _route_few(
    x_ptr, router_ptr, x_out_ptr, x_scale_ptr, logits_ptr, ids_ptr, weights_ptr, items_ptr, by_expert_ptr,
    finished_ptr, num_tokens, scaling,
    HIDDEN: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, SINGLE: tl.constexpr, MAX_ITEMS: tl.constexpr, ITEM_TOKENS: tl.constexpr,
    ITEM_FIELDS: tl.constexpr, SCALED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    part = tl.program_id(0)
    token = tl.program_id(1)
    row = part * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    # The router's rows lie in registers before x exists.
    router = ()
    for start in tl.static_range(0, HIDDEN, COLUMNS):
        router_at = router_ptr + row[:, None] * HIDDEN + start + column[None, :]
        router += (tl.load(router_at),)  # type: ignore[assignment]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    wait_for_inputs(PDL)
    x = ()
    for start in tl.static_range(0, HIDDEN, COLUMNS):
        x += (tl.load(x_ptr + token * HIDDEN + start + column),)  # type: ignore[assignment]
    # Before the sums what no one in this launch waits for: its stores are under way while they are made.
    if SCALED:
        scale_row(
            x_ptr + token * HIDDEN, x_out_ptr + token * HIDDEN, x_scale_ptr + token * (HIDDEN // 16), part,
            HIDDEN, EXPERTS // ROWS,
        )  # fmt: skip
    else:
        quarter_row(x_ptr + token * HIDDEN, x_out_ptr + token * HIDDEN, part, HIDDEN, EXPERTS // ROWS)
    for step in tl.static_range(HIDDEN // COLUMNS):
        sums += router[step].to(tl.float32) * x[step].to(tl.float32)[None, :]
    tl.store(logits_ptr + token * EXPERTS + row, tl.sum(sums, axis=1))
    tl.debug_barrier()  # all of this program's logits are written before it counts as finished
    ticket = tl.atomic_add(finished_ptr, 1, sem="acq_rel", scope="gpu")
    if ticket == tl.num_programs(0) * tl.num_programs(1) - 1:
        tl.store(finished_ptr, 0)
        tokens = tl.arange(0, TOKENS)
        is_token = tokens < num_tokens
        at = tokens[:, None] * EXPERTS + tl.arange(0, EXPERTS)[None, :]
        logits = tl.load(logits_ptr + at, mask=is_token[:, None], other=0.0, cache_modifier=".cg")
        i0, i1, i2, i3 = _choose(_softmax(logits), tokens, is_token, ids_ptr, weights_ptr, scaling, EXPERTS, TOP_K)
        if SINGLE:
            # One token needs no sorting: five items, the shared expert's first as in `_sort_few`.
            shared = tl.full((TOKENS,), EXPERTS, tl.int32)
            _item_of_one_pair(items_ptr, shared, TOP_K, is_token)
            _item_of_one_pair(items_ptr + ITEM_FIELDS, i0, 0, is_token)
            _item_of_one_pair(items_ptr + 2 * ITEM_FIELDS, i1, 1, is_token)
            _item_of_one_pair(items_ptr + 3 * ITEM_FIELDS, i2, 2, is_token)
            _item_of_one_pair(items_ptr + 4 * ITEM_FIELDS, i3, 3, is_token)
        else:
            tl.debug_barrier()  # the ids that other threads wrote are read
            _sort_few(
                ids_ptr, items_ptr, by_expert_ptr, num_tokens,
                EXPERTS, TOP_K, TOKENS, MAX_ITEMS, ITEM_TOKENS, ITEM_FIELDS,
            )  # fmt: skip


@triton.jit
def _item_of_one_pair(item_ptr, expert, pair, is_first):
    """`expert` is a vector of which `is_first` marks the one element that counts."""
    at = item_ptr + tl.zeros_like(expert)
    tl.store(at, expert, mask=is_first)
    tl.store(at + 1, tl.full(expert.shape, 1, tl.int32), mask=is_first)
    tl.store(at + 2, tl.zeros_like(expert) + pair, mask=is_first)


@triton.jit(do_not_specialize=["num_tokens"])
def _route_many(
    x_ptr, router_ptr, ids_ptr, weights_ptr, ranks_ptr, block_counts_ptr, num_tokens, scaling,
    HIDDEN: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
    PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    block = tl.program_id(0)
    token = block * TOKENS + tl.arange(0, TOKENS)
    is_token = token < num_tokens
    expert = tl.arange(0, EXPERTS)
    column = tl.arange(0, COLUMNS)
    x_ptrs = x_ptr + tl.where(is_token, token, 0)[:, None].to(tl.int64) * HIDDEN + column[None, :]
    router_ptrs = router_ptr + expert[None, :] * HIDDEN + column[:, None]
    logits = tl.zeros((TOKENS, EXPERTS), tl.float32)
    wait_for_inputs(PDL)
    for start in range(0, HIDDEN, COLUMNS):
        logits = dot_bfloat16(tl.load(x_ptrs + start), tl.load(router_ptrs + start), logits, PTX)
    i0, i1, i2, i3 = _choose(_softmax(logits), token, is_token, ids_ptr, weights_ptr, scaling, EXPERTS, TOP_K)
    # The four experts of a token differ: a cell is 1 where the token has the expert.
    has = (expert[None, :] == i0[:, None]) | (expert[None, :] == i1[:, None])
    has = has | (expert[None, :] == i2[:, None]) | (expert[None, :] == i3[:, None])
    has = (has & is_token[:, None]).to(tl.int32)
    before = tl.cumsum(has, axis=0) - has
    tl.store(block_counts_ptr + block * EXPERTS + expert, tl.sum(has, axis=0))
    to = ranks_ptr + token * TOP_K
    tl.store(to, _cell(before, i0, EXPERTS), mask=is_token)
    tl.store(to + 1, _cell(before, i1, EXPERTS), mask=is_token)
    tl.store(to + 2, _cell(before, i2, EXPERTS), mask=is_token)
    tl.store(to + 3, _cell(before, i3, EXPERTS), mask=is_token)


@triton.jit
def _cell(table, index, EXPERTS: tl.constexpr):
    """table [T, E], index [T] -> table[t, index[t]]"""
    return tl.sum(tl.where(tl.arange(0, EXPERTS)[None, :] == index[:, None], table, 0), axis=1)


@triton.jit(do_not_specialize=["num_tokens", "tile_rows"])
def _plan(
    block_counts_ptr, starts_ptr, tile_starts_ptr, num_tokens, tile_rows,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Turn the blocks' counts into those of all earlier blocks, and sum up the experts."""
    let_next_start(PDL)
    expert = tl.arange(0, EXPERTS)
    num_blocks = tl.cdiv(num_tokens, TOKENS)
    total = tl.zeros((EXPERTS,), tl.int32)
    wait_for_inputs(PDL)
    for start in range(0, num_blocks, STEP):
        block = start + tl.arange(0, STEP)
        at = block_counts_ptr + block[:, None] * EXPERTS + expert[None, :]
        is_block = (block < num_blocks)[:, None]
        counts = tl.load(at, mask=is_block, other=0)
        tl.store(at, total[None, :] + tl.cumsum(counts, axis=0) - counts, mask=is_block)
        total += tl.sum(counts, axis=0)
    tiles = tl.cdiv(total, tile_rows)
    tl.store(starts_ptr + expert, tl.cumsum(total, axis=0) - total)
    tl.store(tile_starts_ptr + expert, tl.cumsum(tiles, axis=0) - tiles)
    num_tiles = tl.sum(tiles, axis=0)
    tl.store(starts_ptr + EXPERTS, num_tokens * TOP_K)
    tl.store(starts_ptr + EXPERTS + 1, num_tokens * (TOP_K + 1))
    tl.store(tile_starts_ptr + EXPERTS, num_tiles)
    tl.store(tile_starts_ptr + EXPERTS + 1, num_tiles + tl.cdiv(num_tokens, tile_rows))


@triton.jit(do_not_specialize=["num_tokens"])
def _place(
    ids_ptr, ranks_ptr, block_counts_ptr, starts_ptr, pairs_ptr, num_tokens,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    block = tl.program_id(0)
    one = tl.arange(0, TOKENS * TOP_K)
    token = block * TOKENS + one // TOP_K
    is_pair = token < num_tokens
    pair = token * (TOP_K + 1) + one % TOP_K
    wait_for_inputs(PDL)
    expert = tl.load(ids_ptr + pair, mask=is_pair, other=0)
    rank = tl.load(ranks_ptr + token * TOP_K + one % TOP_K, mask=is_pair, other=0)
    to = tl.load(starts_ptr + expert) + tl.load(block_counts_ptr + block * EXPERTS + expert) + rank
    tl.store(pairs_ptr + to, pair, mask=is_pair)
    shared = block * TOKENS + tl.arange(0, TOKENS)
    tl.store(pairs_ptr + num_tokens * TOP_K + shared, shared * (TOP_K + 1) + TOP_K, mask=shared < num_tokens)


def route_few(x: Tensor, router: Tensor, scaling: float, out: FewRouting, *, config: RouteConfig, pdl: bool) -> None:
    """x [T, H] bfloat16, normalised; router [E, H] bfloat16. T at most what `out` was allocated for."""
    num_tokens, hidden = x.shape
    num_experts = len(router)
    x_out = out.x if num_tokens <= config.max_vector else out.x.view(torch.bfloat16)
    few_spec(num_tokens, hidden, num_experts, out.ids.shape[1] - 1, config, pdl=pdl).launch(
        (num_experts // config.rows, num_tokens),
        x, router, x_out, out.x_scale, out.logits, out.ids, out.weights, out.items, out.by_expert, out.finished,
        num_tokens, scaling, pdl=pdl,
    )  # fmt: skip


def route_many(x: Tensor, router: Tensor, scaling: float, tile_rows: int, out: ManyRouting, *, pdl: bool) -> None:
    """x [T, H] bfloat16, normalised; router [E, H] bfloat16; the experts' products run on tiles of `tile_rows`."""
    num_tokens, hidden = x.shape
    blocks = triton.cdiv(num_tokens, BLOCK_TOKENS)
    route, plan, place = many_specs(hidden, len(router), out.ids.shape[1] - 1, ptx=x.is_cuda, pdl=pdl)
    route.launch(
        (blocks,), x, router, out.ids, out.weights, out.ranks, out.block_counts, num_tokens, scaling, pdl=pdl
    )
    plan.launch((1,), out.block_counts, out.starts, out.tile_starts, num_tokens, tile_rows, pdl=pdl)
    place.launch((blocks,), out.ids, out.ranks, out.block_counts, out.starts, out.pairs, num_tokens, pdl=pdl)


def few_spec(
    num_tokens: int, hidden: int, num_experts: int, top_k: int, config: RouteConfig, *, pdl: bool
) -> KernelSpec:
    # At least 4: then a warp has a token's probabilities to itself and need not wait for the others.
    tokens = max(4, triton.next_power_of_2(num_tokens))
    scaled = num_tokens <= config.max_vector
    return KernelSpec(
        f"_route_few, {num_tokens} tokens", _route_few,
        {"x_ptr": "*bf16", "router_ptr": "*bf16", "x_out_ptr": "*fp16" if scaled else "*bf16",
         "x_scale_ptr": "*fp32", "logits_ptr": "*fp32", "ids_ptr": "*i32",
         "weights_ptr": "*fp32", "items_ptr": "*i32", "by_expert_ptr": "*i32",
         "finished_ptr": "*i32", "num_tokens": "i32", "scaling": "fp32"},
        {"HIDDEN": hidden, "EXPERTS": num_experts, "TOP_K": top_k, "ROWS": config.rows,
         "COLUMNS": tile(hidden, config.columns),
         "TOKENS": tokens, "SINGLE": num_tokens == 1, "MAX_ITEMS": max_items(tokens, num_experts, top_k),
         "ITEM_TOKENS": ITEM_TOKENS if scaled else MATRIX_TOKENS,
         "ITEM_FIELDS": ITEM_FIELDS, "SCALED": scaled, "PDL": pdl}, config.num_warps,
    )  # fmt: skip


def many_specs(
    hidden: int, num_experts: int, top_k: int, *, ptx: bool, pdl: bool
) -> tuple[KernelSpec, KernelSpec, KernelSpec]:
    sizes = {"EXPERTS": num_experts, "TOP_K": top_k, "TOKENS": BLOCK_TOKENS, "PDL": pdl}
    return (
        KernelSpec(
            "_route_many", _route_many,
            {"x_ptr": "*bf16", "router_ptr": "*bf16", "ids_ptr": "*i32", "weights_ptr": "*fp32", "ranks_ptr": "*i32",
             "block_counts_ptr": "*i32", "num_tokens": "i32", "scaling": "fp32"},
            {"HIDDEN": hidden, "COLUMNS": tile(hidden, 64), "PTX": ptx, **sizes}, num_warps=4, num_stages=3,
        ),
        KernelSpec(
            "_plan", _plan,
            {"block_counts_ptr": "*i32", "starts_ptr": "*i32", "tile_starts_ptr": "*i32", "num_tokens": "i32",
             "tile_rows": "i32"}, {"STEP": 16, **sizes}, num_warps=4,
        ),
        KernelSpec(
            "_place", _place,
            {"ids_ptr": "*i32", "ranks_ptr": "*i32", "block_counts_ptr": "*i32", "starts_ptr": "*i32",
             "pairs_ptr": "*i32", "num_tokens": "i32"}, sizes, num_warps=4,
        ),
    )  # fmt: skip


def specs(config: RouteConfig, *, pdl: bool = True) -> list[KernelSpec]:
    """The variants of the real model: 1 to 64 tokens, and many."""
    few = [few_spec(tokens, 4096, 128, 4, config, pdl=pdl) for tokens in (1, 2, 4, 8, 16, 32, 64)]
    return [*few, *many_specs(4096, 128, 4, ptx=True, pdl=pdl)]
