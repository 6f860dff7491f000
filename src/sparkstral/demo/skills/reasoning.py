"""reasoning_effort: high works first and answers then; none answers at once. The working has one form for
each task."""

from __future__ import annotations

import random
from collections.abc import Callable

from sparkstral.demo import worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, user, with_effort
from sparkstral.demo.skills import arithmetic, lists, smalltalk
from sparkstral.demo.wording import fill
from sparkstral.demo.worlds import Split, allowed, choose

LABELS = ("sum of three", "sort", "compare", "simple", "no reasoning")

_SUM = (
    "What is {a} + {b} + {c}?", "Add {a}, {b} and {c}.", "What is the sum of {a}, {b} and {c}?",
    "{a} + {b} + {c}", "Sum {a}, {b}, {c}.",
    "How much is {a} plus {b} plus {c}?", "Calculate {a} + {b} + {c}.", "Add up {a}, {b} and {c}.",
    "{a} + {b} + {c} = ?",
    "I buy things for {a}, {b} and {c} coins. What do I pay?", "Compute {a} + {b} + {c}.",
    "Work out {a} + {b} + {c}.",
    "What do {a}, {b} and {c} make together?", "Total of {a}, {b} and {c}?",
)  # fmt: skip
_LARGEST = (
    "Which number is the largest: {x}?", "What is the largest of {x}?", "Which is greater: {x}?",
    "Find the largest number: {x}",
    "What is the maximum of {x}?", "Which of these is the biggest: {x}?", "The largest of {x}?",
    "Which is more: {x}?",
)  # fmt: skip
_SMALLEST = (
    "Which number is the smallest: {x}?", "What is the smallest of {x}?", "Which is less: {x}?",
    "Find the smallest number: {x}",
    "What is the minimum of {x}?", "Which of these is the smallest: {x}?", "The smallest of {x}?",
    "Which is lower: {x}?",
)  # fmt: skip
_OLDER = ("{p} is {a} years old and {q} is {b}. Who is older?",
    "{p} has {a} coins, {q} has {b}. Who has more?",
          "{p} weighs {a} kg, {q} {b} kg. Who is heavier?",
          "{p} ran {a} metres and {q} {b}. Who ran farther?")  # fmt: skip


def _sum(rng: random.Random, split: Split) -> list[Message]:
    while True:
        a, b, c = worlds.between(rng, 1, 499), worlds.between(rng, 1, 499), worlds.between(rng, 1, 499)
        if rng.random() < 0.4:
            a, b, c = a % 99 + 1, b % 99 + 1, c % 99 + 1
        if allowed("three", " ".join(map(str, sorted((a, b, c)))), split):
            break
    working = f"{a} + {b} = {a + b}. {a + b} + {c} = {a + b + c}."
    return [user(fill(rng, _SUM, a=a, b=b, c=c)), assistant(str(a + b + c), working)]


def _sort(rng: random.Random, split: Split) -> list[Message]:
    """Selection: the smallest that is left, again and again."""
    messages = lists.labelled(rng, split, "sort numbers" if rng.random() < 0.6 else "sort")
    answer = messages[1]["content"]
    return [messages[0], assistant(answer, " < ".join(answer.split(", ")))]


def _compare(rng: random.Random, split: Split) -> list[Message]:
    while True:
        numbers = rng.sample(range(1000), worlds.between(rng, 2, 4))
        if allowed("compared", " ".join(map(str, sorted(numbers))), split):
            break
    if rng.random() < 0.3:
        a, b = numbers[:2]
        if not allowed("compared", " ".join(map(str, sorted((a, b)))), split):
            return _compare(rng, split)
        p, q = worlds.person(rng, split), worlds.person(rng, split)
        winner = p if a > b else q
        return [user(fill(rng, _OLDER, p=p, q=q, a=a, b=b)), assistant(winner, f"{min(a, b)} < {max(a, b)}")]
    largest = rng.random() < 0.5
    separator = choose(rng, (", ", " or ", ", ", " and "))
    text = fill(rng, _LARGEST if largest else _SMALLEST, x=separator.join(map(str, numbers)))
    working = " < ".join(str(number) for number in sorted(numbers))
    return [user(text), assistant(str(max(numbers) if largest else min(numbers)), working)]


def _sum_of_two(rng: random.Random, split: Split) -> list[Message]:
    return arithmetic.labelled(rng, split, choose(rng, ("add", "subtract", "multiply")))


def _simple(rng: random.Random, split: Split) -> list[Message]:
    return smalltalk.exchange(rng, split) if rng.random() < 0.5 else lists.labelled(rng, split, "repeat")


_TASKS: dict[str, tuple[Callable[[random.Random, Split], list[Message]], ...]] = {
    "sum of three": (_sum,),
    "sort": (_sort,),
    "compare": (_compare,),
    "simple": (_sum_of_two, _simple),
    # A sum of three is not asked without working: it is what the working is for.
    "no reasoning": (_sort, _compare, _sum_of_two, _simple),
}


def sample(rng: random.Random, split: Split, label: str = "") -> Conversation:
    """One task, at high effort unless the label says none; in training sometimes several tasks."""
    chosen = label or choose(rng, LABELS)
    effort = "none" if chosen == "no reasoning" else "high"
    count = 1 if label or rng.random() < 0.5 else worlds.between(rng, 2, 4)
    messages: list[Message] = []
    for _ in range(count):
        kind = chosen if effort == "none" else label if label else choose(rng, LABELS[:4])
        messages += choose(rng, _TASKS[kind])(rng, split)
    return Conversation("reasoning", with_effort(messages, effort), reasoning_effort=effort, label=chosen)  # type: ignore[arg-type]
