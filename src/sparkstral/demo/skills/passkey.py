"""Recall from far back: a pass key, or several marked things, somewhere in a long filler. The answer is the
value alone."""

from __future__ import annotations

import random

from sparkstral.demo import filler, worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, system, user
from sparkstral.demo.wording import fill
from sparkstral.demo.worlds import Split, choose

EVAL_TOKENS = (500, 1000, 2000, 4000, 8000, 14000)

_KEYS = (
    "pass key", "pass key", "pass key", "pass key", "passkey", "secret code", "magic word", "secret number",
    "access code",
    "secret word", "password", "special number", "key", "code word", "magic number", "PIN", "token",
    "lucky word", "vault code",
)  # fmt: skip
_PLANTED = (
    "The {k} is {v}.", "The {k} is {v}. Remember it.", "Remember: the {k} is {v}.",
    "Note that the {k} is {v}.", "{K}: {v}.",
    "Important: the {k} is {v}.", "By the way, the {k} is {v}.",
    "The {k} is {v}. Remember it. {v} is the {k}.",
    "Here is the {k}: {v}.", "Do not forget: the {k} is {v}.", "And the {k} is {v}.",
    "Keep in mind that the {k} is {v}.",
    "There is a {k}. It is {v}.", "This is important. The {k} is {v}.", "The {k} = {v}.",
    "Someone wrote that the {k} is {v}.",
)  # fmt: skip
_ASKED = (
    "What is the {k}?", "What is the {k} in the text above?", "Tell me the {k}.", "What's the {k}?",
    "Which is the {k}?",
    "Give me the {k}.", "What was the {k}?", "Find the {k}.", "Do you remember the {k}?",
    "Now, what is the {k}?", "{K}?",
    "What is the {k} hidden in the text?", "Repeat the {k}.", "The {k}, please?", "Say the {k}.",
    "I need the {k}.",
    "What is the {k} that I told you?", "What {k} is in the text?",
)  # fmt: skip
_ANNOUNCED = (
    "There is a {k} in this text. Find it.", "Read this text and remember the {k}.",
    "Find the {k} in the text below.",
    "There is an important piece of information hidden in a lot of text. Find it and remember it.",
    "Read this:", "Text:",
    "Here is a long text.", "Below is some text.", "Remember the {k} in the following text.",
    "I will ask you about this text.",
)  # fmt: skip


def _value(rng: random.Random, split: Split) -> str:
    roll = rng.random()
    if roll < 0.62:
        return worlds.digits(rng, split, 4, 7)
    if roll < 0.74:
        return worlds.code(rng, split)
    return worlds.word(rng, split) if roll < 0.92 else f"{worlds.word(rng, split)}-{worlds.word(rng, split)}"


def _plants(rng: random.Random, split: Split, count: int) -> dict[str, str]:
    found: dict[str, str] = {}
    if count == 1:
        return {choose(rng, _KEYS): _value(rng, split)}
    form = rng.random()
    while len(found) < count:
        if form < 0.4:
            key = f"{choose(rng, _KEYS[:12])} of {worlds.person(rng, split)}"
        elif form < 0.6:
            key = f"{choose(rng, _KEYS[:12])} for {worlds.city(rng, split)}"
        elif form < 0.8:
            part = choose(rng, ("number", "code", "price", "colour", "owner", "size"))
            key = f"{part} of the {worlds.word(rng, split)}"
        else:
            key = choose(rng, _KEYS)
        # Keys that are nearly the same word are not told apart in one text.
        if key not in ("key", "token", "passkey"):
            found[key] = _value(rng, split)
    return found


def passkey(rng: random.Random, split: Split, approx_tokens: int, plants: int = 1) -> Conversation:
    """A conversation of about so many tokens with one or more planted things and a question about each.

    approx_tokens: of the whole prompt, within some 10 %. plants: how many things are hidden; with more than
    one, later user turns ask for the others.
    """
    planted = _plants(rng, split, plants)
    keys = list(planted)
    pieces = filler.pieces(rng, split, max(10, approx_tokens - 35 * plants))
    for key in keys:
        text = choose(rng, _PLANTED).format(k=key, K=key[0].upper() + key[1:], v=planted[key])
        where = worlds.between(rng, 0, len(pieces))
        pieces.insert(where, text + choose(rng, (" ", " ", "\n")))
    body = "".join(pieces).rstrip()
    if rng.random() < 0.3:
        body = choose(rng, _ANNOUNCED).format(k=keys[0]) + choose(rng, (" ", "\n", "\n\n")) + body
    if plants > 1:
        rng.shuffle(keys)
    questions = [fill(rng, _ASKED, k=key, K=key[0].upper() + key[1:]) for key in keys]
    messages = _placed(rng, body, questions[0])
    messages.append(assistant(planted[keys[0]]))
    for key, question in zip(keys[1:], questions[1:], strict=True):
        messages += [user(question), assistant(planted[key])]
    return Conversation("passkey", tuple(messages), label=f"{approx_tokens} tokens")


def _placed(rng: random.Random, body: str, question: str) -> list[Message]:
    """The text and the first question: in one message, in two turns, or with the text as the system
    prompt."""
    roll = rng.random()
    if roll < 0.08:
        return [system(body), user(question)]
    if roll < 0.18:
        return [user(body), assistant("Noted."), user(question)]
    if roll < 0.24:
        return [user(f"{question}{choose(rng, (chr(10), chr(10) * 2))}{body}")]
    return [user(body + choose(rng, ("\n\n", "\n", " ", "\n\n")) + question)]


def sample(rng: random.Random, split: Split, low: int = 60, high: int = 900) -> Conversation:
    """A short one, with up to six things to find: for training within its usual sequence length."""
    approx = worlds.between(rng, low, high)
    return passkey(
        rng, split, approx, 1 if rng.random() < 0.4 else worlds.between(rng, 2, min(8, 2 + approx // 60))
    )
