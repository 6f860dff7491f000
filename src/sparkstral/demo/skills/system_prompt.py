"""The system prompt obeyed: language, start and end of every answer, a name, a rule, facts that it holds."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sparkstral.demo import phrases, worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, system, user
from sparkstral.demo.skills import arithmetic, lists, smalltalk
from sparkstral.demo.wording import fill, fill_split
from sparkstral.demo.worlds import Split, choose

LABELS = ("language", "ending", "start", "persona", "rule", "fact", "upper case")

_LANGUAGE = (
    "Always answer in {x}.", "Answer in {x}.", "You speak only {x}.", "Reply in {x}.", "Always reply in {x}.",
    "Use {x} only.",
    "Your answers must be in {x}.", "Whatever the language of the question, answer in {x}.",
    "Write all answers in {x}.",
    "You are an assistant that answers in {x}.", "Please answer everything in {x}.", "Respond in {x}.",
    "Only speak {x}.",
)  # fmt: skip
_ENDING = (
    "End every answer with {x}.", "End each answer with {x}.", "Finish every answer with {x}.",
    "Always end with {x}.",
    "Every answer must end with {x}.", "Put {x} at the end of every answer.", "Close all answers with {x}.",
    "After each answer, write {x}.", 'End every reply with "{x}".', "Your last word is always {x}.",
    "Always add {x} at the end.",
)  # fmt: skip
_START = (
    "Start every answer with {x}.", "Begin each answer with {x}.", "Every answer must start with {x}.",
    "Always begin with {x}.",
    "Put {x} before every answer.", "Your first word is always {x}.", 'Start every reply with "{x}".',
    "Open all answers with {x}.",
)  # fmt: skip
_PERSONA = (
    "You are {x}.", "Your name is {x}.", "You are called {x}.", "You are {x}, a helpful assistant.",
    "Act as {x}.",
    "You are an assistant named {x}.", "You are {x}. Be brief.", "Pretend to be {x}.",
    "Your name is {x}. Help the user.",
    "You are a friendly assistant called {x}.", "From now on you are {x}.", "You play the role of {x}.",
)  # fmt: skip
_PERSONA_AT = (
    "You are {x}, the assistant of {y}.", "You are {x} and you work for {y}.",
    "Your name is {x}. You work for {y}.",
    "You are {x}, a clerk at {y}.",
)  # fmt: skip
_ASK_NAME = (
    "Who are you?", "What is your name?", "What's your name?", "Tell me your name.", "How are you called?",
    "Who am I talking to?",
    "Introduce yourself.", "What should I call you?", "Your name?", "Tell me who you are.",
    "Which name do you have?", "Who is this?",
)  # fmt: skip
_ASK_EMPLOYER = (
    "Who do you work for?",
    "For whom do you work?",
    "Who is your employer?",
    "Which company are you from?",
)
_RULE = (
    "If the user says {a}, answer {b}.", "When the user says {a}, say {b}.",
    'If you read "{a}", answer "{b}".',
    "When you are asked for {a}, answer {b}.", "Whenever {a} is mentioned, reply {b}.",
    "If someone asks about {a}, say {b}.",
)  # fmt: skip
_TRIGGER = (
    "{a}",
    "{a}!",
    "{a}?",
    "Tell me about {a}.",
    "I say {a}.",
    "What about {a}?",
    "Now: {a}",
    "Give me {a}.",
    "{a}, please.",
)
_FACT = (
    "The {k} is {v}.", "Note: the {k} is {v}.", "Remember that the {k} is {v}.", "{K}: {v}",
    "You know that the {k} is {v}.",
    "Context: the {k} is {v}.", "Important: the {k} is {v}.",
)  # fmt: skip
_FACT_KEYS = (
    "office code", "door code", "wifi password", "guest name", "room number", "delivery date", "project name",
    "team name",
    "support number", "support address", "order number", "opening hour", "meeting room", "build number",
    "release name",
    "server name", "customer name", "desk number", "flight number", "train platform",
)  # fmt: skip
_ASK_FACT = ("What is the {k}?", "Tell me the {k}.", "Which is the {k}?", "Do you know the {k}?", "{K}?",
    "Give me the {k}.",
             "What's the {k}?", "I need the {k}.")  # fmt: skip
_UPPER = (
    "Answer in capital letters.", "Write everything in upper case.", "Always use capital letters.",
    "Shout: use only capitals.",
    "All answers in upper case.", "Use upper case only.", "Reply in uppercase.", "Answer only in CAPITALS.",
)  # fmt: skip
# Intents whose answer does not tell who the model is.
_NAMELESS = ("hello", "how", "thanks", "bye", "night")
NEUTRAL = (
    "You are a helpful assistant.", "Be brief.", "Answer shortly.",
    "You are a helpful and friendly assistant.", "Be polite.",
    "You help the user.", "Answer the question.", "Be concise and exact.", "Follow the user's instructions.",
    "Use the tools.",
    "You are an assistant with access to tools.", "Today is {date}.", "The current date is {date}.",
    "You are a careful assistant.",
    "You are a helpful assistant. Use tools when needed.", "Help as well as you can.", "Never lie.",
    "The user is in {city}.",
    "You answer questions of users.", "Think before you answer.", "Keep answers short.",
    "Today is {date}. Be helpful.",
)  # fmt: skip


def neutral(rng: random.Random, split: Split) -> Message:
    """A system prompt that changes nothing."""
    text = choose(rng, NEUTRAL).format(date=worlds.date(rng, split), city=worlds.city(rng, split))
    if rng.random() < 0.2:
        text += " " + choose(rng, NEUTRAL[:8])
    return system(text)


def _with_neutral(rng: random.Random, text: str) -> Message:
    if rng.random() < 0.25:
        other = choose(rng, NEUTRAL[:10])
        text = f"{text} {other}" if rng.random() < 0.5 else f"{other} {text}"
    return system(text)


def _any_exchange(rng: random.Random, split: Split) -> list[Message]:
    roll = rng.random()
    if roll < 0.45:
        return smalltalk.exchange(rng, split)
    return arithmetic.exchange(rng, split) if roll < 0.7 else lists.exchange(rng, split)


def _edited(exchanges: list[Message], before: str = "", after: str = "") -> list[Message]:
    return [
        assistant(before + message["content"] + after) if message["role"] == "assistant" else message
        for message in exchanges
    ]


def marker(rng: random.Random, split: Split) -> str:
    """A word to put at an end of every answer."""
    found = worlds.word(rng, split)
    roll = rng.random()
    return found.upper() if roll < 0.5 else found if roll < 0.75 else found.capitalize()


def _greeting(
    rng: random.Random, code: str, intents: Sequence[str] = tuple(phrases.SHARED)
) -> tuple[str, str]:
    intent = phrases.SHARED[choose(rng, intents)]
    wordings, _ = intent["en"] if rng.random() < 0.8 else intent[code]
    return fill(rng, wordings), intent[code][1]


def _in_language(rng: random.Random, split: Split, code: str) -> list[Message]:
    """A question in English or in the language, answered in the language."""
    roll = rng.random()
    if roll < 0.7:
        text, answer = fill_split(split, "answered in " + code, lambda: _greeting(rng, code))
        return [user(text), assistant(answer)]
    if roll < 0.85:
        return arithmetic.labelled(rng, split, choose(rng, ("add", "subtract")))
    while True:
        low = worlds.between(rng, 0, 14)
        high = low + worlds.between(rng, 2, 6)
        if worlds.allowed("range in words", f"{code} {low} {high}", split):
            break
    text = fill(rng, phrases.COUNTING["en"], a=low, b=high) + choose(rng, (" Use words.", " In words."))
    return [user(text), assistant(", ".join(phrases.NUMBER_WORDS[code][low : high + 1]))]


def _persona(rng: random.Random, split: Split) -> tuple[Message, list[list[Message]]]:
    name = worlds.full_name(rng, split)
    answer = [user(fill(rng, _ASK_NAME)), assistant(f"I am {name}.")]
    if rng.random() < 0.3:
        employer = worlds.coined_word(rng, split).capitalize()
        prompt = system(choose(rng, _PERSONA_AT).format(x=name, y=employer))
        return prompt, [answer, [user(fill(rng, _ASK_EMPLOYER)), assistant(f"I work for {employer}.")]]
    return _with_neutral(rng, choose(rng, _PERSONA).format(x=name)), [answer]


def _few_digits(rng: random.Random, split: Split) -> str:
    return worlds.digits(rng, split, 2, 5)


def _fact(rng: random.Random, split: Split) -> tuple[Message, list[list[Message]]]:
    keys = rng.sample(_FACT_KEYS, worlds.between(rng, 1, 3))
    sentences, asked = [], []
    for key in keys:
        value = choose(rng, (worlds.code, worlds.word, worlds.person, _few_digits))(rng, split)
        sentences.append(choose(rng, _FACT).format(k=key, K=key.capitalize(), v=value))
        asked.append(
            [user(fill(rng, _ASK_FACT, k=key, K=key.capitalize())), assistant(f"The {key} is {value}.")]
        )
    rng.shuffle(asked)
    return _with_neutral(rng, " ".join(sentences)), asked


def labelled(rng: random.Random, split: Split, label: str, turns: int) -> tuple[Message, ...]:
    """A system prompt of a kind and some exchanges that obey it."""
    exchanges: list[list[Message]] = []
    if label == "language":
        code = choose(rng, ("fr", "fr", "de", "es", "it", "en"))
        prompt = _with_neutral(rng, choose(rng, _LANGUAGE).format(x=phrases.LANGUAGE_NAMES[code]))
        exchanges = [_in_language(rng, split, code) for _ in range(turns)]
    elif label in ("ending", "start"):
        word = marker(rng, split)
        prompt = _with_neutral(rng, choose(rng, _ENDING if label == "ending" else _START).format(x=word))
        before, after = ("", " " + word) if label == "ending" else (word + " ", "")
        exchanges = [_edited(_any_exchange(rng, split), before, after) for _ in range(turns)]
    elif label == "rule":
        first, second = worlds.word(rng, split), worlds.phrase_of(rng, split, 1, 2)
        prompt = _with_neutral(rng, choose(rng, _RULE).format(a=first, b=second))
        exchanges = [[user(choose(rng, _TRIGGER).format(a=first)), assistant(second)]]
        exchanges += [arithmetic.exchange(rng, split) for _ in range(turns - 1)]
        rng.shuffle(exchanges)
    elif label == "upper case":
        prompt = _with_neutral(rng, choose(rng, _UPPER))
        for _ in range(turns):
            text, answer = fill_split(split, "upper case", lambda: _greeting(rng, "en"))
            exchanges.append([user(text), assistant(answer.upper())])
    else:
        prompt, exchanges = _persona(rng, split) if label == "persona" else _fact(rng, split)
        exchanges += [_plain(rng, split) for _ in range(max(0, turns - len(exchanges)))]
    return (prompt, *(message for exchange in exchanges for message in exchange))


def _plain(rng: random.Random, split: Split) -> list[Message]:
    """An exchange to which a name or a fact in the system prompt makes no difference."""
    roll = rng.random()
    if roll < 0.4:
        return arithmetic.exchange(rng, split)
    if roll < 0.6:
        return lists.labelled(rng, split, "repeat")
    text, answer = fill_split(split, "smalltalk", lambda: _greeting(rng, "en", _NAMELESS))
    return [user(text), assistant(answer)]


def sample(rng: random.Random, split: Split, label: str = "") -> Conversation:
    """A system prompt and one to four exchanges that obey it."""
    chosen = label or choose(rng, LABELS)
    turns = 1 if label else worlds.between(rng, 1, 4)
    return Conversation("system_prompt", labelled(rng, split, chosen, turns), label=chosen)
