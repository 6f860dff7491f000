"""How many tokens of prompts a step takes beside running answers, so that these do not come to a halt.

Owns what the past steps' times say about the next one; must not know requests. Times are given, so that tests make
them.

The time of a step is taken as D(n) + f + s·p for n answers that get a token each and p tokens of prompts. D is the mean
of steps without prompts; f and s are a least-squares line through what the recent ones with prompts took more, whose
sizes alternate so that both can be told apart. Both grow with the context, so there is a line for each doubling of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

AIM = 2 / 3  # of the slowdown that is allowed: what is aimed at is passed by every other step
FIRST_TOKENS = 2  # of prompts, before anything is known of them; doubled in each step that may take more
FORGETTING = 0.9  # weight of a step in the next one's line: about ten steps count
NEW_WEIGHT = 0.25  # of a step without prompts in their mean
MAX_STEP_S = 1.0  # of a step with prompts, whoever waits: who comes next waits for it, and so does who leaves
LANE_TOKENS = 512  # below this the context costs little
MAX_MIXED_STEPS = 32  # in a row; then one without prompts tells D anew, at 3 % of the time


@dataclass(slots=True)
class _Line:
    """y = f + s·x through points that are forgotten as new ones come."""

    w: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        for name, value in (("w", 1.0), ("x", x), ("y", y), ("xx", x * x), ("xy", x * y)):
            setattr(self, name, getattr(self, name) * FORGETTING + value)

    def fit(self) -> tuple[float, float]:
        """(f, s), neither negative; without a rise to be seen all of y is put down to x."""
        spread = self.w * self.xx - self.x * self.x
        slope = (self.w * self.xy - self.x * self.y) / spread if spread > 1e-6 * self.w * self.xx else 0.0
        fixed = (self.y - slope * self.x) / self.w
        if slope <= 0.0 or fixed <= 0.0:
            return 0.0, max(self.y / self.x, 1e-9)
        return fixed, slope


@dataclass(slots=True)
class _Lane:
    """What is known of prompts that stand at about one length of context."""

    num_tokens: int
    most_tokens: float  # in MAX_STEP_S, by the last step that told
    line: _Line = field(default_factory=_Line)
    num_steps: int = 0


@dataclass(slots=True)
class Pacer:
    """`max_slowdown` is how many times longer a step may take for the prompts in it; None sets no limit but
    MAX_STEP_S."""

    max_slowdown: float | None
    _decode_s: dict[int, float] = field(default_factory=dict)  # D by n
    _lanes: dict[int, _Lane] = field(default_factory=dict)
    _num_mixed_steps: int = 0  # since the last one without prompts
    _is_timed: bool = False

    def holds_back(self, num_decoding: int) -> bool:
        """Whether prompts have to share a step with answers that it must not slow down too much."""
        return self.max_slowdown is not None and num_decoding > 0 and self._is_timed

    def prompt_tokens(self, num_decoding: int, context: int, limit: int) -> int:
        """Tokens of prompts, up to `limit`, for a step in which `num_decoding` answers go on; 0 for one that is to
        tell D. `context` is the longest that such a token looks back on. Without answers, or without times, that is
        `limit`, or what MAX_STEP_S holds."""
        lane = self._lane(context)
        limit = max(1, int(min(lane.most_tokens, limit)))
        if self.max_slowdown is None or not self.holds_back(num_decoding):
            return limit
        if not self._decode_s or self._num_mixed_steps >= MAX_MIXED_STEPS:
            return 0
        if lane.line.w:
            fixed_s, token_s = lane.line.fit()
            # Where a prompt's first token costs most of it (all experts are read for it), more of them are worth it.
            allowed_s = max((self.max_slowdown * AIM - 1) * self._usual_s(num_decoding), 2 * fixed_s)
            lane.num_tokens = max(1, min(int((allowed_s - fixed_s) / token_s), 2 * lane.num_tokens))
        is_small = lane.num_steps % 2 == 1
        return min(limit, max(1, lane.num_tokens // 2) if is_small else lane.num_tokens)

    def took(self, num_decoding: int, num_prompt_tokens: int, context: int, seconds: float) -> None:
        """A step of this kind took so long."""
        self._is_timed = True
        if num_prompt_tokens == 0:
            if num_decoding:
                before = self._decode_s.get(num_decoding, seconds)
                weight = NEW_WEIGHT if seconds > before else 2 * NEW_WEIGHT  # a slow one tells more of other programs
                self._decode_s[num_decoding] = before + weight * (seconds - before)
            self._num_mixed_steps = 0
            return
        lane, prompt_s = self._lane(context), seconds
        if num_decoding:
            self._num_mixed_steps += 1
            if not self._decode_s:
                return
            prompt_s = max(0.0, seconds - self._usual_s(num_decoding))
            lane.line.add(num_prompt_tokens, prompt_s)
            lane.num_steps += 1
        if prompt_s > MAX_STEP_S / 4:
            lane.most_tokens = num_prompt_tokens * MAX_STEP_S / prompt_s
        else:  # a step that was short for want of tokens does not tell how many would have been too many
            lane.most_tokens = max(lane.most_tokens, 4 * num_prompt_tokens)

    def _lane(self, context: int) -> _Lane:
        """That of the context; a new one begins with half of what its neighbour may have."""
        number = lane_of(context)
        lane = self._lanes.get(number)
        if lane is None:
            if self._lanes:
                near = self._lanes[min(self._lanes, key=lambda known: abs(known - number))]
                lane = _Lane(max(FIRST_TOKENS, near.num_tokens // 2), near.most_tokens)
            else:
                lane = _Lane(FIRST_TOKENS, math.inf)
            self._lanes[number] = lane
        return lane

    def _usual_s(self, num_decoding: int) -> float:
        """D(n), or what is known of the nearest n."""
        nearest = min(self._decode_s, key=lambda n: abs(n - num_decoding))
        return self._decode_s[nearest]


def lane_of(context: int) -> int:
    """Contexts of one lane differ by a factor of two at most, and so do their tokens' costs."""
    return (context // LANE_TOKENS).bit_length()
