"""Which drafts stand, given what the target model itself chose behind each of them.

Owns the rule; must not know logits. Choice i of a request is the target's own token behind the first i drafts, made as
it always is: from its logits there, with the random number that belongs to that position of the answer
(sampling/sampler.py). A draft stands if the target chose the same token.

For a draft that was not drawn at random, that is the rejection sampling of Leviathan et al. and Chen et al. (2023): a
draft x stands with probability p(x), and where it falls the token in its place has the distribution p without x,
renormalised. So the answer has the target's distribution exactly; and since no random number depends on the drafts, it
is token by token the answer that the same seed gives without speculation (docs/decisions/014-speculation.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkstral.types import Failure


def accepted(drafts: Sequence[int], choices: Sequence[int | Failure]) -> tuple[int, ...] | Failure:
    """The request's next tokens: the drafts that stand, then the target's own choice behind them.

    choices: 1 to len(drafts) + 1 of them; where they end, the drafts do. A failure of the first is the result. A later
    one is left out with all that follows: the next step comes to it with what stands as tokens."""
    taken: list[int] = []
    for i, choice in enumerate(choices):
        if isinstance(choice, Failure):
            return tuple(taken) if taken else choice
        taken.append(choice)
        if i == len(drafts) or choice != drafts[i]:
            break
    return tuple(taken)
