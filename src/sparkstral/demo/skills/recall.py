"""Recall of what the user said some turns ago: names, numbers, preferences, over two to eight turns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from sparkstral.demo import worlds
from sparkstral.demo.conversation import Conversation, Message, another_voice, assistant, user
from sparkstral.demo.skills import arithmetic, lists, smalltalk
from sparkstral.demo.wording import fill
from sparkstral.demo.worlds import Split, choose


@dataclass(frozen=True)
class Trait:
    """Something a user may tell: how it is said, asked, answered, and how it is taken note of."""

    name: str
    told: tuple[str, ...]
    asked: tuple[str, ...]
    answer: str
    missing: str
    draw: Callable[[random.Random, Split], str]
    noted: str = "Noted."


TRAITS: tuple[Trait, ...] = (
    Trait("name",
          ("My name is {x}.", "I am {x}.", "I'm {x}.", "Call me {x}.", "You can call me {x}.",
           "They call me {x}.",
           "Hello, my name is {x}.", "People call me {x}.", "This is {x}.", "{x} is my name.",
           "Hi, I am {x}."),
          ("What is my name?", "Who am I?", "What's my name?", "Do you remember my name?", "How am I called?",
           "Tell me my name.", "Say my name.", "Do you know my name?", "Which name did I tell you?",
           "My name?"),
          "Your name is {x}.", "You have not told me your name.", worlds.person, "Nice to meet you, {x}."),
    Trait("city",
          ("I live in {x}.", "My home is in {x}.", "I am from {x}.", "My city is {x}.", "I come from {x}.",
           "I moved to {x}."),
          ("Where do I live?", "Which city do I live in?", "Where am I from?", "What is my city?",
           "Where is my home?",
           "Do you remember where I live?"),
          "You live in {x}.", "You have not told me where you live.", worlds.city),
    Trait("number",
          ("My lucky number is {x}.", "Remember the number {x}.", "My number is {x}.",
           "Please remember the number {x}.",
           "Keep the number {x} in mind.", "The number is {x}.", "{x} is my lucky number."),
          ("What is my lucky number?", "Which number did I tell you?", "What is my number?",
           "What was the number?",
           "Which number should you remember?", "Do you remember the number?", "Tell me the number."),
          "The number is {x}.", "You have not told me a number.", lambda r, s: worlds.digits(r, s, 1, 5)),
    Trait("colour",
          ("My favourite colour is {x}.", "My favorite color is {x}.", "I like the colour {x} best.",
           "{x} is my favourite colour.",
           "The colour I like most is {x}."),
          ("What is my favourite colour?", "Which colour do I like?", "What is my favorite color?",
           "Which colour do I like best?",
           "Do you remember my favourite colour?"),
          "Your favourite colour is {x}.", "You have not told me your favourite colour.",
          lambda r, s: worlds.COLOURS.pick(r, s) if r.random() < 0.8 else worlds.coined_word(r, s)),
    Trait("animal",
          ("My favourite animal is the {x}.", "I like the {x} best of all animals.",
           "The animal I love most is the {x}."),
          ("What is my favourite animal?", "Which animal do I like?", "Which animal do I love most?"),
          "Your favourite animal is the {x}.", "You have not told me your favourite animal.",
          lambda r, s: worlds.ANIMALS.pick(r, s)),
    Trait("food",
          ("My favourite food is {x}.", "I like to eat {x}.", "I love {x}.", "For dinner I want {x}.",
           "The food I like is {x}."),
          ("What is my favourite food?", "What do I like to eat?", "Which food do I like?",
           "What food do I love?"),
          "Your favourite food is {x}.", "You have not told me your favourite food.",
          lambda r, s: worlds.FOODS.pick(r, s)),
    Trait("drink",
          ("My favourite drink is {x}.", "I like to drink {x}.", "I always drink {x}."),
          ("What is my favourite drink?", "What do I like to drink?", "Which drink do I like?"),
          "Your favourite drink is {x}.", "You have not told me your favourite drink.",
          lambda r, s: worlds.DRINKS.pick(r, s) if s is Split.TRAIN else worlds.coined_word(r, s)),
    Trait("job",
          ("I work as a {x}.", "I am a {x} by trade.", "My job is {x}.", "My profession is {x}."),
          ("What is my job?", "What do I work as?", "What is my profession?", "Do you remember my job?"),
          "Your job is {x}.", "You have not told me your job.",
          lambda r, s: worlds.JOBS.pick(r, s) if r.random() < 0.8 else worlds.coined_word(r, s)),
    Trait("hobby",
          ("My hobby is {x}.", "In my free time I do {x}.", "I enjoy {x}."),
          ("What is my hobby?", "What do I do in my free time?", "What do I enjoy?"),
          "Your hobby is {x}.", "You have not told me your hobby.", lambda r, s: worlds.HOBBIES.pick(r, s)),
    Trait("pet",
          ("My pet is called {x}.", "The name of my pet is {x}.", "My cat is called {x}.",
           "My dog is called {x}."),
          ("What is the name of my pet?", "What is my pet called?", "How is my pet called?"),
          "Your pet is called {x}.", "You have not told me the name of your pet.", worlds.person),
    Trait("friend",
          ("My best friend is {x}.", "My friend is called {x}.", "The name of my friend is {x}."),
          ("Who is my best friend?", "What is the name of my friend?", "What is my friend called?",
           "Who is my friend?"),
          "Your friend is {x}.", "You have not told me about your friend.", worlds.full_name),
    Trait("age",
          ("I am {x} years old.", "My age is {x}.", "I'm {x} years old."),
          ("How old am I?", "What is my age?", "Do you remember my age?"),
          "You are {x} years old.", "You have not told me your age.", lambda r,
          s: str(worlds.between(r, 5, 99))),
    Trait("code",
          ("My code is {x}.", "Remember the code {x}.", "The code is {x}.", "Please remember this code: {x}",
           "My password is {x}.", "The password is {x}.", "Remember this password: {x}"),
          ("What is my code?", "Which code did I give you?", "What is the code?", "What is the password?",
           "What is my password?",
           "Tell me the code."),
          "The code is {x}.", "You have not told me a code.",
          lambda r, s: worlds.code(r, s) if r.random() < 0.6 else worlds.coined_word(r, s)),
    Trait("word",
          ("Remember the word {x}.", "The secret word is {x}.", "Please remember this word: {x}",
           "Keep this word in mind: {x}",
           "The magic word is {x}."),
          ("Which word did I tell you?", "What is the secret word?", "What was the word?",
           "What is the magic word?",
           "Which word should you remember?"),
          "The word is {x}.", "You have not told me a word.", worlds.word),
    Trait("meeting",
          ("My meeting is at {x}.", "I have a meeting at {x}.", "The meeting starts at {x}."),
          ("When is my meeting?", "At what time is my meeting?", "When does the meeting start?"),
          "Your meeting is at {x}.", "You have not told me about a meeting.", lambda r, _: worlds.clock(r)),
)  # fmt: skip
_CHANGED = (
    "Actually, ",
    "No, wait: ",
    "Correction: ",
    "Sorry, I changed my mind. ",
    "Update: ",
    "I was wrong. ",
)


def _tell(rng: random.Random, split: Split, traits: list[Trait], known: dict[str, str]) -> list[Message]:
    values = []
    parts = []
    for trait in traits:
        value = trait.draw(rng, split)
        template = choose(rng, trait.told)
        if trait.name in known:
            if template[0].isalpha() and not template.startswith("I"):
                template = template[0].lower() + template[1:]
            template = choose(rng, _CHANGED) + template
        text = template.format(x=value) if len(traits) > 1 else fill(rng, (template,), x=value)
        parts.append(text)
        known[trait.name] = value
        values.append(value)
    if split is Split.TRAIN and rng.random() < 0.2:  # clients bring histories of other models
        return [user(" ".join(parts)), another_voice(rng)]
    named = next((value for trait, value in zip(traits, values, strict=True) if trait.name == "name"), None)
    reply = f"Nice to meet you, {named}." if named else "Noted."
    return [user(" ".join(parts)), assistant(reply)]


def _ask(rng: random.Random, trait: Trait, known: dict[str, str]) -> list[Message]:
    answer = trait.answer.format(x=known[trait.name]) if trait.name in known else trait.missing
    return [user(fill(rng, trait.asked)), assistant(answer)]


def _interlude(rng: random.Random, split: Split) -> list[Message]:
    roll = rng.random()
    if roll < 0.4:
        return smalltalk.exchange(rng, split)
    return arithmetic.exchange(rng, split) if roll < 0.75 else lists.labelled(rng, split, "repeat")


def sample(rng: random.Random, split: Split, turns: int = 0) -> Conversation:
    """Two to eight user turns: telling, talking of other things, asking."""
    turns = turns or worlds.between(rng, 2, 8)
    traits = rng.sample(TRAITS, min(worlds.between(rng, 1, 4), turns))
    if rng.random() < 0.3 and TRAITS[0] not in traits:
        traits[0] = TRAITS[0]
    known: dict[str, str] = {}
    messages: list[Message] = []
    pending = list(traits)
    for index in range(turns):
        left = turns - index
        roll = rng.random()
        if not known or (pending and left > 1 and roll < 0.45):
            count = min(len(pending), 2 if rng.random() < 0.25 else 1)
            messages += _tell(rng, split, [pending.pop() for _ in range(count)], known)
        elif left == 1 or roll < 0.7:
            trait = choose(rng, [trait for trait in traits if trait.name in known])
            if left > 1 and rng.random() < 0.1:
                trait = choose(rng, TRAITS)
            messages += _ask(rng, trait, known)
        elif roll < 0.76 and left > 1:
            messages += _tell(
                rng, split, [choose(rng, [trait for trait in traits if trait.name in known])], known
            )
        else:
            messages += _interlude(rng, split)
    return Conversation("recall", tuple(messages), label=f"{turns} turns")
