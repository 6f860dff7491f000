"""Greeting, counting, arithmetic and a weather call in English, French, German, Spanish and Italian."""

from __future__ import annotations

import random

from sparkstral.demo import phrases, toolbox, worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, calls, results, user
from sparkstral.demo.skills import arithmetic
from sparkstral.demo.skills.tools import NO_TOOL, toolset
from sparkstral.demo.tool_families import weather
from sparkstral.demo.wording import fill_split
from sparkstral.demo.worlds import Split, allowed, choose

LANGUAGES = tuple(phrases.LANGUAGE_NAMES)
TASKS = ("greeting", "counting", "arithmetic", "weather")
LABELS = tuple(f"{task}, {language}" for language in LANGUAGES for task in TASKS)

_NO_TOOL = {
    "en": NO_TOOL,
    "fr": "Je n'ai pas d'outil pour cela.",
    "de": "Dafür habe ich kein Werkzeug.",
    "es": "No tengo una herramienta para eso.",
    "it": "Non ho uno strumento per questo.",
}


def _courteous(rng: random.Random, language: str, text: str) -> str:
    before, after = phrases.COURTESY[language]
    roll = rng.random()
    if roll < 0.25:
        return choose(rng, before) + text
    if roll < 0.35:
        return text + choose(rng, after)
    if roll < 0.45:
        return text.rstrip("?.!¡ ")
    return text.lower() if roll < 0.52 and "{" not in text else text


def _worded(rng: random.Random, language: str, templates: tuple[str, ...], **slots: object) -> str:
    return _courteous(rng, language, choose(rng, templates)).format(**slots)


def _greeting(rng: random.Random, language: str) -> tuple[str, str]:
    wordings, answer = choose(rng, tuple(phrases.SHARED.values()))[language]
    return _courteous(rng, language, choose(rng, wordings)), answer


def task_exchange(rng: random.Random, split: Split, task: str, language: str) -> list[Message]:
    """A request in a language and its answer; without tools a question for the weather is declined."""
    if task == "greeting":
        text, answer = fill_split(split, "greeting " + language, lambda: _greeting(rng, language))
        return [user(text), assistant(answer)]
    if task == "counting":
        return _counting(rng, split, language)
    if task == "arithmetic":
        adding = rng.random() < 0.6
        a, b = arithmetic.operands(rng, split, "add" if adding else "subtract")
        templates = phrases.ADDING[language] if adding else phrases.SUBTRACTING[language]
        return [user(_worded(rng, language, templates, a=a, b=b)), assistant(str(a + b if adding else a - b))]
    text = _worded(rng, language, phrases.WEATHER[language], city=worlds.city(rng, split))
    return [user(text), assistant(_NO_TOOL[language])]


def _counting(rng: random.Random, split: Split, language: str) -> list[Message]:
    in_words = rng.random() < 0.5
    while True:
        low = worlds.between(rng, 0, 15) if in_words else worlds.between(rng, 0, 90)
        high = low + worlds.between(rng, 2, 5 if in_words else 9)
        if allowed("range in words" if in_words else "range", f"{language} {low} {high}", split):
            break
    text = _worded(rng, language, phrases.COUNTING[language], a=low, b=high)
    if in_words:
        text += phrases.IN_WORDS[language]
        return [user(text), assistant(", ".join(phrases.NUMBER_WORDS[language][low : high + 1]))]
    return [user(text), assistant(", ".join(str(number) for number in range(low, high + 1)))]


def exchange(rng: random.Random, split: Split) -> list[Message]:
    """A request in any language; no tools are offered."""
    task = choose(rng, TASKS[:3]) if rng.random() < 0.9 else "weather"
    return task_exchange(rng, split, task, choose(rng, LANGUAGES))


def sample(rng: random.Random, split: Split, label: str = "") -> Conversation:
    """One request, in training sometimes several; the weather with a tool that gives it."""
    task, language = label.split(", ") if label else (choose(rng, TASKS), choose(rng, LANGUAGES))
    label = f"{task}, {language}"
    if task != "weather":
        count = 1 if split is Split.HELD_OUT or rng.random() < 0.4 else worlds.between(rng, 2, 5)
        messages = task_exchange(rng, split, task, language)
        for _ in range(count - 1):
            messages += exchange(rng, split)
        return Conversation("languages", tuple(messages), label=label)
    tool = weather(rng, split)
    tools = toolset(rng, split, worlds.between(rng, 1, 3), tool)
    key = tool.definition["function"]["parameters"]["required"][0]
    messages = []
    for _ in range(1 if split is Split.HELD_OUT else worlds.between(rng, 1, 2)):
        where = worlds.city(rng, split)
        text = _worded(rng, language, phrases.WEATHER[language], city=where)
        call = calls(rng, [(tool.name, {key: where})])
        if messages:
            messages += _result_of(rng, split, messages[-1])
        messages += [user(text), call]
    return Conversation("languages", tuple(messages), toolbox.offered(rng, tools), label=label)


def _result_of(rng: random.Random, split: Split, call: Message) -> list[Message]:
    text, told = toolbox.success(rng, split)
    return [*results(call, [text]), assistant(told)]
