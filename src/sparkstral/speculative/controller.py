"""How many drafts are worth verifying: by how often they stood, and by what steps of each size took.

Owns the estimates and the choice; standard library only, times are given, so that tests make them. Three rules:

Gain. A step of R rows and m drafts takes T(R + m), learned from the steps themselves, and gives R tokens and of each
request's k drafts a + a² + … + a^k, where a is how often its drafts stood of late. Drafts are taken while tokens a
second rise.
Purse. What speculation may lose: it earns MAX_LOSS of the time of every step, and each step that speculated pays in
what it gained on plain steps, or takes out what it lost. An empty purse means plain steps. So whatever the estimates
are worth, an engine that speculates is slower than one that does not by MAX_LOSS and one step at most.
Curiosity. What was passed over is slowly forgotten, and sizes that were not measured of late are guessed from smaller
ones: so both are tried again, as far as the purse pays, and the unknown at most twice as large as the known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_LOSS = 0.02  # of the time; 3 % is what is promised, a third of it is for what the estimates do not see
MIN_GAIN = 1.03  # of tokens a second, before a step speculates: below this noise decides
MAX_PURSE_STEPS = 4.0  # of plain time that gains can be saved up: so long may losses last that follow on gains
PLAIN_EVERY = 32  # steps that speculated in a row; then a plain one tells anew what it takes
STALE_STEPS = 512  # after so many others, a size's time is what its smaller neighbours' are
EXACT_SIZES = 16  # up to here each number of tokens has its own time, then each eight have
PRIOR_RATE, PRIOR_WEIGHT = 0.8, 4.0  # of drafts that nothing is known of, and how many trials that is worth: hopeful
MEMORY, LONG_MEMORY = 0.9, 0.98  # weight of a step's trials in the next, of a request and of all together
FORGETTING = 0.995  # the same in a step that passes drafts over
FREE_SHARE = 2e-3  # of a step: drafts that take no more are always made
SLOWER_WEIGHT, FASTER_WEIGHT = 0.25, 0.5  # of a new time in the mean: a slow one tells more of other programs


@dataclass(slots=True)
class DraftRecord:
    """How one request's drafts did: of those that were reached, how many stood, older ones counting less."""

    stood: float = 0.0
    tried: float = 0.0

    def add(self, num_drafts: int, num_accepted: int, memory: float) -> None:
        self.stood = self.stood * memory + num_accepted
        self.tried = self.tried * memory + min(num_drafts, num_accepted + 1)

    def forget(self, memory: float) -> None:
        self.stood *= memory
        self.tried *= memory

    def rate(self, prior: float) -> float:
        """The probability that a draft stands once those before it do."""
        return (self.stood + prior * PRIOR_WEIGHT) / (self.tried + PRIOR_WEIGHT)


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A step, when it is over: `num_rows` requests had one token each and `num_drafts` drafts together, of which
    `num_accepted` stood. `seconds` is all its time, `proposing_s` of it for `num_proposed` drafts to come; None if
    there were prompts in it, beside which it does not tell what the drafts took."""

    num_rows: int
    num_drafts: int
    num_accepted: int
    seconds: float | None
    proposing_s: float = 0.0
    num_proposed: int = 0
    was_held_back: bool = False  # it was not planned ahead because there might be drafts for it


@dataclass(slots=True)
class _Cost:
    seconds: float
    at_step: int


@dataclass(slots=True)
class StepCosts:
    """T(n): what a step of n tokens without prompts takes."""

    _by_size: dict[int, _Cost] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)  # sorted
    _num_steps: int = 0

    def took(self, num_tokens: int, seconds: float) -> None:
        self._num_steps += 1
        size = _size(num_tokens)
        known = self._by_size.get(size)
        if known is None:
            self._sizes.insert(bisect_left(self._sizes, size), size)
            self._by_size[size] = _Cost(seconds, self._num_steps)
            return
        if not self._is_fresh(known):
            known.seconds = seconds
        weight = SLOWER_WEIGHT if seconds > known.seconds else FASTER_WEIGHT
        known.seconds += weight * (seconds - known.seconds)
        known.at_step = self._num_steps

    def measured(self, num_tokens: int) -> float | None:
        """T of exactly this size, if it is known and not stale."""
        known = self._by_size.get(_size(num_tokens))
        return known.seconds if known is not None and self._is_fresh(known) else None

    def estimate(self, num_tokens: int) -> float:
        """T; of a size that is not known as much as that of the next smaller one that is, so that it is tried; beyond
        the largest on the line of the last two. Sizes that are stale count as not known."""
        fresh = [size for size in self._sizes if self._is_fresh(self._by_size[size])]
        if not fresh:
            return 0.0
        size = _size(num_tokens)
        place = bisect_left(fresh, size)
        if place < len(fresh):
            return self._by_size[fresh[place] if fresh[place] == size else fresh[max(0, place - 1)]].seconds
        last = fresh[-1]
        last_s = self._by_size[last].seconds
        if len(fresh) == 1:
            return last_s
        slope = (last_s - self._by_size[fresh[-2]].seconds) / (last - fresh[-2])
        return last_s + max(0.0, slope) * (size - last)

    @property
    def largest(self) -> int:
        """Tokens of the largest step that is known and not stale."""
        return max((size for size in self._sizes if self._is_fresh(self._by_size[size])), default=0)

    def _is_fresh(self, cost: _Cost) -> bool:
        return self._num_steps - cost.at_step <= STALE_STEPS


def _size(num_tokens: int) -> int:
    return num_tokens if num_tokens <= EXACT_SIZES else -(-num_tokens // 8) * 8


class DepthController:
    """One for an engine; `max_depth` bounds the drafts of one request in one step."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._costs = StepCosts()
        self._all = DraftRecord()
        self._purse_s = 0.0
        self._proposing_s: float | None = None  # for one draft of one request
        self._num_since_plain = 0

    def new_record(self) -> DraftRecord:
        return DraftRecord()

    def wanted(self, record: DraftRecord, num_rows: int) -> int:
        """Drafts that the proposer is to make for a request, in a step in which `num_rows` requests go on."""
        plain_s = self._costs.measured(num_rows)
        if plain_s is None:
            return 0
        draft_s = self._proposing_s
        if draft_s is None:
            return 1  # to be timed
        if draft_s * self.max_depth * num_rows < FREE_SHARE * plain_s:
            return self.max_depth  # `choose` sees them before it decides
        if self._purse_s < 0:
            return 0
        rate = record.rate(self._rate)
        best, best_pace, expected = 0, MIN_GAIN / plain_s, 0.0
        for depth in range(1, self.max_depth + 1):
            expected += rate**depth
            step_s = self._costs.estimate(num_rows * (1 + depth)) + draft_s * depth * num_rows
            pace = (1 + expected) / step_s
            if pace > best_pace:
                best, best_pace = depth, pace
        if best == 0:
            self._pass_over(record)
        return best

    def choose(self, available: Sequence[tuple[DraftRecord, int]], num_rows: int, limit: int) -> list[int]:
        """How many of its drafts each request verifies in a step of `num_rows` rows; at most `limit` together.

        available: each request's record and how many drafts it has."""
        none = [0] * len(available)
        if not self.may_speculate(num_rows):
            return none
        plain_s = self._costs.estimate(num_rows)
        # Every draft with the probability that it is reached and stands; the likeliest are taken first.
        ladder = sorted(
            (
                (record.rate(self._rate) ** depth, -place)
                for place, (record, num_drafts) in enumerate(available)
                for depth in range(1, min(num_drafts, self.max_depth) + 1)
            ),
            reverse=True,
        )[: min(limit, 2 * self._costs.largest - num_rows)]
        best, best_pace, gained = 0, MIN_GAIN * num_rows / plain_s, 0.0
        for count, (probability, _) in enumerate(ladder, start=1):
            gained += probability
            pace = (num_rows + gained) / self._costs.estimate(num_rows + count)
            if pace > best_pace:
                best, best_pace = count, pace
        if best == 0:
            for record, num_drafts in available:
                if num_drafts:
                    self._pass_over(record)
            return none
        chosen = none
        for _, place in ladder[:best]:
            chosen[-place] += 1
        return chosen

    def may_speculate(self, num_rows: int) -> bool:
        """Whether a step of so many rows may hold drafts at all."""
        return (
            self._purse_s >= 0
            and self._costs.measured(num_rows) is not None
            and self._num_since_plain < PLAIN_EVERY
        )

    def verified(self, record: DraftRecord, num_drafts: int, num_accepted: int) -> None:
        record.add(num_drafts, num_accepted, MEMORY)
        self._all.add(num_drafts, num_accepted, LONG_MEMORY)

    def took(self, step: DraftStep) -> None:
        """Learn from a step, and settle with the purse. Beside prompts drafts are taken to cost what they do alone."""
        num_rows, num_drafts, seconds = step.num_rows, step.num_drafts, step.seconds
        proposing_s, num_proposed = step.proposing_s, step.num_proposed
        has_prompts = seconds is None
        if seconds is None:
            seconds = self._costs.estimate(num_rows + num_drafts) + proposing_s
        if num_proposed:
            each = proposing_s / num_proposed
            before = each if self._proposing_s is None else self._proposing_s
            self._proposing_s = before + SLOWER_WEIGHT * (each - before)
        plain_s = self._costs.measured(num_rows)
        if plain_s is not None:
            gain_s = 0.0
            if num_drafts or step.was_held_back:
                gain_s = plain_s * (1 + step.num_accepted / num_rows) - seconds
            else:  # what a plain step takes is no loss, however long it took
                gain_s = -proposing_s
            self._purse_s = min(self._purse_s + gain_s + MAX_LOSS * plain_s, MAX_PURSE_STEPS * plain_s)
        if has_prompts:
            return
        self._num_since_plain = self._num_since_plain + 1 if num_drafts else 0
        if num_drafts or not step.was_held_back:
            self._costs.took(num_rows + num_drafts, seconds - proposing_s)

    @property
    def _rate(self) -> float:
        return self._all.rate(PRIOR_RATE)

    def _pass_over(self, record: DraftRecord) -> None:
        record.forget(FORGETTING)
        self._all.forget(FORGETTING)
