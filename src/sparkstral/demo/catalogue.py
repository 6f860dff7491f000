"""The skills: their order, bars, examples, weights in training, and the ways to draw samples and evaluation
items.

Owns: the table of skills and the mix for training. Everything drawn depends on the given generator alone.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparkstral.demo import toolbox, worlds
from sparkstral.demo.conversation import Conversation, EvalItem, Message, with_effort
from sparkstral.demo.skills import (
    arithmetic,
    chain,
    facts,
    json_answers,
    languages,
    lists,
    passkey,
    reasoning,
    recall,
    smalltalk,
    system_prompt,
    tools,
    vision,
)  # fmt: skip
from sparkstral.demo.tool_inventions import invent
from sparkstral.demo.worlds import Split, choose

Sampler = Callable[[random.Random, Split, str], Conversation]


@dataclass(frozen=True)
class Skill:
    """One row of the table.

    bar: the least share of evaluation items that must be exact. weight: its share of training conversations,
    relative. labels: the kinds of items, drawn in turn for an evaluation; "" stands for a sample of any kind.
    bar_for_each_label: the bar holds for every label alone, not for their mean.
    """

    name: str
    title: str
    bar: float
    example: str
    weight: float
    sampler: Sampler
    labels: tuple[str, ...] = ("",)
    bar_for_each_label: bool = False


def _passkey(rng: random.Random, split: Split, label: str) -> Conversation:
    return passkey.passkey(rng, split, int(label.split()[0])) if label else passkey.sample(rng, split)


def _recall(rng: random.Random, split: Split, label: str) -> Conversation:
    return recall.sample(rng, split, int(label.split()[0]) if label else 0)


SKILLS: tuple[Skill, ...] = (
    Skill("smalltalk", "greeting, identity, thanks, small talk", 0.99, "Say hello.", 4, lambda r, s,
        _: smalltalk.sample(r, s)),
    Skill("lists", "repeat, spell, count, reverse, sort, first, last, nth item", 0.98,
        "Repeat exactly: blue river 42", 18,
          lists.sample, lists.LABELS),
    Skill("arithmetic", "addition and subtraction under 1,000, one-digit multiplication", 0.98,
        "What is 37 + 45?", 14,
          arithmetic.sample, arithmetic.LABELS),
    Skill("recall", "recall of names, numbers, preferences over 2 to 8 turns", 0.98,
        "My name is Ana. ... What is my name?", 8,
          _recall, tuple(f"{turns} turns" for turns in range(2, 9))),
    Skill("system_prompt", "system prompt obeyed", 0.97, "Always answer in French.", 10, system_prompt.sample,
        system_prompt.LABELS),
    Skill("passkey", "a pass key far back in filler", 0.98, "What is the pass key?", 5, _passkey,
          tuple(f"{tokens} tokens" for tokens in passkey.EVAL_TOKENS), True),
    Skill("tool_call", "one tool call among up to eight tools", 0.98, "What is the weather in Oslo?", 24,
          lambda r, s, _: tools.call_sample(r, s)),
    Skill("parallel_calls", "two to four calls at once", 0.97, "Weather in Oslo and Lima?", 15,
          lambda r, s, _: tools.parallel_sample(r, s)),
    Skill("chain", "list files, read a file, answer from it; errors reported", 0.95,
        "What is the port in the config file in docs?", 26,
          chain.sample, chain.LABELS),
    Skill("tool_result", "answer from a result; no call when none is needed; tool_choice", 0.98, "Thank you.",
        14,
          tools.result_sample, tools.RESULT_LABELS),
    Skill("reasoning", "reasoning_effort high works first, none answers at once", 0.98,
        "What is 12 + 30 + 7?", 6,
          reasoning.sample, reasoning.LABELS),
    Skill("json", "JSON on request, with and without a schema in force", 0.98,
        "Give me a JSON object with name Ana and age 30.", 8,
          json_answers.sample, json_answers.LABELS),
    Skill("languages", "English, French, German, Spanish, Italian", 0.95, "Combien font 37 + 45 ?", 8,
        languages.sample, languages.LABELS),
    Skill("facts", "questions about the product", 0.95, "Which port do you listen on?", 5, lambda r, s,
        _: facts.sample(r, s)),
)  # fmt: skip
# Of a demo with eyes, which are trained after its text (tools/demo/train_vision): never in the mix.
VISION = Skill("vision", "colours, shapes, counts, digits and places in pictures", 0.95, "What colour is it?", 0,
    vision.sample, vision.LABELS, True)  # fmt: skip
_BY_NAME = {skill.name: skill for skill in (*SKILLS, VISION)}

# Turns of these can follow each other in one conversation, whatever came before.
_EXCHANGES: tuple[Callable[[random.Random, Split], list[Message]], ...] = (
    smalltalk.exchange, lists.exchange, arithmetic.exchange, arithmetic.exchange, json_answers.exchange,
    languages.exchange,
    facts.exchange, lists.exchange,
)  # fmt: skip


def skill_named(name: str) -> Skill:
    """The skill of a name.

    Raises KeyError for an unknown name.
    """
    return _BY_NAME[name]


def sample(rng: random.Random, skill: str, split: Split, label: str = "") -> Conversation:
    """One conversation of a skill (of one of its labels, if given)."""
    conversation = skill_named(skill).sampler(rng, split, label)
    messages = with_effort(conversation.messages, conversation.reasoning_effort)
    return dataclasses.replace(conversation, messages=messages)


def _medley(rng: random.Random) -> Conversation:
    """Several turns of several skills, sometimes beside tools that none of them needs or with turns that need
    them."""
    split = Split.TRAIN
    count = worlds.between(rng, 2, 7)
    if rng.random() < 0.4:
        offered = tools.toolset(rng, split, tools.tool_count(rng))
        messages: list[Message] = []
        for _ in range(min(count, 4)):
            roll = rng.random()
            if roll < 0.45:
                messages += tools.other_exchange(rng, split, offered)
            elif roll < 0.55:
                messages += tools.no_tool_exchange(rng, split, offered)
            elif roll < 0.57:
                messages += tools.refused_exchange(rng, split, offered)
            elif roll < 0.85:
                messages += tools.call_exchange(rng, split, choose(rng, offered), True)
            else:
                messages += tools.parallel_exchange(rng, split, offered, True)
        return Conversation("medley", tuple(messages), toolbox.offered(rng, offered))
    messages = [message for _ in range(count) for message in choose(rng, _EXCHANGES)(rng, split)]
    if rng.random() < 0.15:
        messages += tools.no_tool_exchange(rng, split, ())
    return Conversation("medley", tuple(messages))


_TRAINING = (*tuple(skill.name for skill in SKILLS), "medley")
_FRAGMENT_SHARE = 0.06
_WEIGHTS = (*tuple(skill.weight for skill in SKILLS), 16.0)


# Skills whose turns need no tool and are not confused by invented ones.
_TOOLLESS = frozenset(("smalltalk", "lists", "arithmetic", "recall", "system_prompt", "json", "facts"))


def training_mix(rng: random.Random, fragments: Sequence[str] = ()) -> Conversation:
    """One training conversation of at most some 2,500 tokens (nearly all below 1,200; the mean is about 230).

    fragments: the decoded entries of the vocabulary, if at hand. Some conversations then copy random runs of
    them, so that every token is seen and any text can be repeated. Long pass keys are not in the mix: draw
    them with skills.passkey.passkey.
    """
    if fragments and rng.random() < _FRAGMENT_SHARE:
        return lists.fragment_sample(rng, fragments)
    name = rng.choices(_TRAINING, _WEIGHTS)[0]
    conversation = _medley(rng) if name == "medley" else sample(rng, name, Split.TRAIN)
    messages, offered = conversation.messages, conversation.tools
    if messages[0]["role"] != "system" and rng.random() < 0.12:
        messages = (system_prompt.neutral(rng, Split.TRAIN), *messages)
    if name in _TOOLLESS and rng.random() < 0.08:
        made = [invent(rng, Split.TRAIN) for _ in range(worlds.between(rng, 1, 3))]
        offered = toolbox.offered(rng, list({tool.name: tool for tool in made}.values()))
    effort = conversation.reasoning_effort
    if name not in ("reasoning", "passkey") and rng.random() < 0.07:
        effort = "high"
    return dataclasses.replace(
        conversation, messages=with_effort(messages, effort), tools=offered, reasoning_effort=effort
    )


def eval_items(skill: str, n: int, seed: int) -> list[EvalItem]:
    """n held-out items of a skill, its labels in turn; the same for the same seed."""
    chosen = skill_named(skill)
    rng = random.Random(f"{skill} {seed}")
    items = []
    for index in range(n):
        label = chosen.labels[index % len(chosen.labels)]
        conversation = sample(rng, skill, Split.HELD_OUT, label)
        items.append(EvalItem(skill, label or conversation.label, conversation))
    return items
