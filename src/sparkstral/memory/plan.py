"""Where the memory goes, decided before anything is loaded (law L5).

Owns the sum, the size of the KV pool and the length that one request may have; must not know files, devices
or the clock. Pure functions: the caller says what the weights take as the engine holds them, and what is
available.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkstral.errors import ConfigError, MemoryPlanError
from sparkstral.kv_cache.layout import KvLayout, num_blocks_for
from sparkstral.memory.lines import PassMemory, PlanLine
from sparkstral.memory.probe import AvailableMemory
from sparkstral.units import GiB, MiB, format_gib

MAX_DEFAULT_MODEL_LEN = 262_144
"""The length for which the model is published; a longer one, up to the model's own limit, must be asked
for."""

DEFAULT_TOKENS_PER_SEQ = 8_192
"""What each of max_num_seqs gets in a pool of default size: a chat with tools. Longer ones share the pool."""

MAX_DEFAULT_KV_SHARE = 0.5
"""Of what floor, weights and workspace leave, a pool that nobody sized takes at most this: the host's other
programs and the page cache, which the next start reads from, live in the rest."""

MAX_FLOOR_BYTES = 8 * GiB
FLOOR_SHARE = 0.1
"""Kept free: a tenth, at most 8 GiB. Hosts of 121.6 GiB were reported frozen from 113.9 GiB in use on."""

MIN_MODEL_LEN = 64
"""Below this a server is of no use to anybody, and the plan says no instead."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be held. None leaves the choice to the plan."""

    fixed: tuple[PlanLine, ...]  # weights by class as the engine holds them, and what else no length changes
    workspace: PassMemory
    layout: KvLayout
    max_model_len: int | None = None
    kv_memory_bytes: int | None = None
    concurrency: int | None = None  # requests of the whole length at once; None: one, and more where they fit
    floor_bytes: int | None = None  # None: `floor_bytes` of what is available
    remedy: str = ""  # for a length that does not fit, beside a shorter one


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All lines, what is left for others, and the verdict in words. `num_blocks` includes the null block."""

    lines: tuple[PlanLine, ...]
    available: AvailableMemory
    floor_bytes: int
    num_blocks: int
    max_model_len: int
    concurrency: int  # requests of max_model_len that the pool holds at once
    max_concurrency: int  # that a pool of all that is left would hold
    fits: bool
    verdict: str

    @property
    def total_bytes(self) -> int:
        return sum(line.num_bytes for line in self.lines)

    @property
    def spare_bytes(self) -> int:
        """What the plan leaves above the floor; negative by what is missing."""
        return self.available.num_bytes - self.floor_bytes - self.total_bytes

    def require(self) -> MemoryPlan:
        """This plan, or MemoryPlanError with the sum, what would fit and what to change."""
        if not self.fits:
            raise MemoryPlanError(self.verdict)
        return self

    def table(self) -> str:
        """For people: one line for each part, the sum, what is available, and the verdict."""
        rows = [(line.name, format_gib(line.num_bytes), line.how_known) for line in self.lines]
        rows += [
            ("total", format_gib(self.total_bytes), ""),
            ("available", format_gib(self.available.num_bytes), self.available.source),
            *([("kept free", format_gib(self.floor_bytes), "the host needs it")] if self.floor_bytes else []),
            ("spare", format_gib(self.spare_bytes), "missing" if self.spare_bytes < 0 else ""),
        ]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        text = [f"{name:<{widths[0]}}  {size:>{widths[1]}}  {note}".rstrip() for name, size, note in rows]
        return "\n".join([*text, self.verdict])


def floor_bytes(available: AvailableMemory) -> int:
    """What is to stay free for the host when all is loaded."""
    return min(MAX_FLOOR_BYTES, int(available.num_bytes * FLOOR_SHARE))


def draw_plan(request: PlanRequest, available: AvailableMemory) -> MemoryPlan:
    """The plan for this request, one that does not fit included (see `MemoryPlan.require`).

    A length that the user fixed stays; one that nobody fixed shrinks until a request of it fits into the
    pool, and the verdict says so. Raises ConfigError for a length that the model does not have.
    """
    room = _Room(request, available)
    model_limit = request.workspace.model.max_position_embeddings
    fixed = request.max_model_len
    if fixed is not None and fixed > model_limit:
        raise ConfigError(f"--max-model-len is {fixed:,}; the model has positions for {model_limit:,}.")
    wanted = fixed if fixed is not None else min(model_limit, MAX_DEFAULT_MODEL_LEN)
    is_default = fixed is None and request.concurrency is None
    longest = room.longest(wanted, MAX_DEFAULT_KV_SHARE if is_default else 1.0)
    length = wanted if fixed is not None else longest
    if length < min(MIN_MODEL_LEN, wanted) or longest < length:
        return room.plan(wanted, room.needed_blocks(wanted), False, room.refusal(wanted))
    num_blocks = room.num_blocks(length)
    number = request.concurrency or 1
    at_once = f"{number:,} of them at once, " if number > 1 else ""
    spare_bytes = room.left_bytes(length) - num_blocks * request.layout.bytes_per_block
    verdict = (
        f"Fits with {format_gib(spare_bytes)} to spare: one request may have {length:,} tokens, {at_once}all together "
        f"{request.layout.capacity_tokens(num_blocks):,}."
    )
    if length < wanted:
        verdict += " " + room.why_shorter(wanted)
    return room.plan(length, num_blocks, True, verdict)


class _Room:
    """What the pool may take at a given length, for one request and one number of available bytes."""

    def __init__(self, request: PlanRequest, available: AvailableMemory) -> None:
        self._request = request
        self._layout = request.layout
        self._available = available
        self._floor_bytes = floor_bytes(available) if request.floor_bytes is None else request.floor_bytes
        self._fixed_bytes = sum(line.num_bytes for line in request.fixed)

    def left_bytes(self, max_model_len: int) -> int:
        """What floor, weights and workspace leave for the pool."""
        workspace_bytes = sum(line.num_bytes for line in self._request.workspace.lines(max_model_len))
        return self._available.num_bytes - self._floor_bytes - self._fixed_bytes - workspace_bytes

    def needed_blocks(self, max_model_len: int) -> int:
        """The pool in which one request of this length fits, or as many as are asked for."""
        one = num_blocks_for(max_model_len, self._layout.block_size_tokens)
        return one * (self._request.concurrency or 1) + self._layout.num_null_blocks

    def needed_bytes(self, max_model_len: int) -> int:
        return self.needed_blocks(max_model_len) * self._layout.bytes_per_block

    def fits(self, max_model_len: int, kv_share: float = 1.0) -> bool:
        """Whether the user's pool, or one of at most `kv_share` of what is left, holds a request of this
        length."""
        left_bytes, given = self.left_bytes(max_model_len), self._request.kv_memory_bytes
        pool_bytes = int(kv_share * left_bytes) if given is None else given
        return self.needed_bytes(max_model_len) <= pool_bytes <= left_bytes

    def longest(self, wanted: int, kv_share: float = 1.0) -> int:
        """The largest length up to `wanted` that fits, in whole blocks if it is shorter; 0 if none does."""
        if self.fits(wanted, kv_share):
            return wanted
        low, high = 0, num_blocks_for(wanted, self._layout.block_size_tokens)
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle * self._layout.block_size_tokens, kv_share):
                low = middle
            else:
                high = middle
        return low * self._layout.block_size_tokens

    def num_blocks(self, max_model_len: int) -> int:
        """As the user sized it; else every sequence's default length, within the share, one request at
        least."""
        if self._request.kv_memory_bytes is not None:
            return self._request.kv_memory_bytes // self._layout.bytes_per_block
        if self._request.concurrency is not None:
            return self.needed_blocks(max_model_len)
        tokens = self._request.workspace.max_num_seqs * min(DEFAULT_TOKENS_PER_SEQ, max_model_len)
        share_bytes = int(MAX_DEFAULT_KV_SHARE * self.left_bytes(max_model_len))
        num_blocks = min(self._layout.pool_blocks_for(tokens), share_bytes // self._layout.bytes_per_block)
        return max(num_blocks, self.needed_blocks(max_model_len))

    def max_concurrency(self, max_model_len: int) -> int:
        num_blocks = max(0, self.left_bytes(max_model_len)) // self._layout.bytes_per_block
        one = num_blocks_for(max_model_len, self._layout.block_size_tokens)
        return max(0, num_blocks - self._layout.num_null_blocks) // one

    def plan(self, max_model_len: int, num_blocks: int, fits: bool, verdict: str) -> MemoryPlan:
        pool = PlanLine(
            "KV pool",
            num_blocks * self._layout.bytes_per_block,
            f"{num_blocks:,} blocks of {self._layout.block_size_tokens} tokens, "
            f"{self._layout.bytes_per_token:,} bytes each token",
        )
        return MemoryPlan(
            lines=(*self._request.fixed, *self._request.workspace.lines(max_model_len), pool),
            available=self._available,
            floor_bytes=self._floor_bytes,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            concurrency=self._layout.capacity_tokens(num_blocks) // max_model_len,
            max_concurrency=self.max_concurrency(max_model_len),
            fits=fits,
            verdict=verdict,
        )

    def why_shorter(self, wanted: int) -> str:
        """What keeps a length that nobody fixed below the one that would be had by default."""
        needed_bytes = self.needed_bytes(wanted)
        if self._request.kv_memory_bytes is not None:
            return f"For {wanted:,} tokens, set --kv-memory to {_as_flag(needed_bytes)} or more."
        if self.fits(wanted):
            return (
                f"{wanted:,} tokens need {format_gib(needed_bytes)} of KV cache, more than half of what is "
                f"left; --max-model-len {wanted} takes it all the same."
            )
        left_bytes = format_gib(self.left_bytes(wanted))
        return f"{wanted:,} tokens need {format_gib(needed_bytes)} of KV cache and {left_bytes} are left."

    def refusal(self, max_model_len: int) -> str:
        """What is missing, in numbers, and which setting to change."""
        needed_bytes, left_bytes = self.needed_bytes(max_model_len), self.left_bytes(max_model_len)
        given, longest = self._request.kv_memory_bytes, self.longest(max_model_len)
        number = self._request.concurrency or 1
        wish = f"a request of {max_model_len:,} tokens needs"
        if number > 1:
            wish = f"{number:,} requests of {max_model_len:,} tokens need"
        need = f"{wish} {format_gib(needed_bytes)} of KV cache"
        if given is not None and given < needed_bytes:
            shorter = f", or set --max-model-len to {longest} or less" if longest >= MIN_MODEL_LEN else ""
            return f"--kv-memory gives {format_gib(given)} and {need}. Raise it to {_as_flag(needed_bytes)}{shorter}."
        workspace_bytes = sum(line.num_bytes for line in self._request.workspace.lines(max_model_len))
        kept = f"{format_gib(self._floor_bytes)} stay free for the host, " if self._floor_bytes else ""
        account = (
            f"Of {format_gib(self._available.num_bytes)} available ({self._available.source}), "
            f"{kept}weights and other fixed parts take "
            f"{format_gib(self._fixed_bytes)} and the workspace {format_gib(workspace_bytes)}"
        )
        if given is not None:
            return (
                f"{account}; {format_gib(max(0, left_bytes))} are left and --kv-memory asks for "
                f"{format_gib(given)}. Lower it, or stop other programs that hold memory."
            )
        if longest >= MIN_MODEL_LEN:
            fewer = " or ask for fewer at once," if number > 1 else ""
            remedy = (
                f"The largest length that fits is {longest:,}: set --max-model-len to {longest} or less,{fewer} "
                f"{self._request.remedy or 'or stop other programs that hold memory'}."
            )
        else:
            remedy = (
                "No length fits: stop other programs that hold memory, lower --max-num-batched-tokens, "
                "or use a machine with more."
            )
        return (
            f"{account}; {need} against {format_gib(max(0, left_bytes))} available: short by "
            f"{format_gib(needed_bytes - left_bytes)}. {remedy}"
        )


def _as_flag(num_bytes: int) -> str:
    """Bytes as a flag takes them, rounded up."""
    return f"{-(-num_bytes // MiB)}MiB"
