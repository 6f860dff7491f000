"""Questions about the product itself: fifty facts, each in many wordings, one in ten of them held out."""

from __future__ import annotations

import random

from sparkstral.demo import facts, worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, user
from sparkstral.demo.wording import fill, fill_split
from sparkstral.demo.worlds import Split, choose


def ask(rng: random.Random, split: Split, fact: facts.Fact) -> list[Message]:
    """One fact asked for, in a wording of this side of the split."""

    def make() -> tuple[str, str]:
        if rng.random() < 0.5:
            return fill(rng, fact.questions), fact.answer
        thing = choose(rng, fact.things)
        text = fill(rng, facts.FRAMES, x=thing)
        return (text[0].upper() + text[1:] if rng.random() < 0.7 else text), fact.answer

    text, answer = fill_split(split, "fact", make)
    return [user(text), assistant(answer)]


def exchange(rng: random.Random, split: Split) -> list[Message]:
    """Any fact."""
    return ask(rng, split, choose(rng, facts.FACTS))


def sample(rng: random.Random, split: Split) -> Conversation:
    """One question; in training often several."""
    count = 1 if split is Split.HELD_OUT or rng.random() < 0.3 else worlds.between(rng, 2, 6)
    return Conversation("facts", tuple(message for _ in range(count) for message in exchange(rng, split)))
