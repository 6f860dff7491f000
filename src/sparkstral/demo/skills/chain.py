"""A chain of calls: list the files, read the right one, answer from it; or report that a call failed."""

from __future__ import annotations

import json
import random

from sparkstral.demo import toolbox, words, worlds
from sparkstral.demo.conversation import Conversation, Message, assistant, calls, results, user
from sparkstral.demo.skills.tools import toolset
from sparkstral.demo.tool_families import list_folder, read_file
from sparkstral.demo.toolbox import OfferedTool, define
from sparkstral.demo.wording import fill
from sparkstral.demo.worlds import Split, choose

LABELS = ("files", "error")

_ASK_KEY = (
    "What is the {k} in the {t} file in {f}?", "Look in {f}: what is the {k} in the {t} file?",
    "Find the {k} in the {t} file. It is in {f}.", "In the folder {f} is a file about {t}. What is its {k}?",
    "Which {k} does the {t} file in {f} give?", "Tell me the {k} from the file about {t} in {f}.",
    "I need the {k} of the {t} file in the folder {f}.", "Check the {t} file in {f} and tell me the {k}.",
    "There is a {t} file in {f}. What {k} does it hold?", "Read the {t} file in {f} and give me the {k}.",
)  # fmt: skip
_ASK_ALL = (
    "What does the {t} file in {f} say?", "Find the {t} file in {f} and show me what is in it.",
    "In the folder {f} is a file about {t}. What does it say?", "Show me the content of the {t} file in {f}.",
    "Look in {f} for the {t} file and read it to me.", "What is written in the {t} file in {f}?",
)  # fmt: skip
_ASK_KEY_BARE = (
    "What is the {k} in the {t} file?", "Find the {k} in the {t} file.",
    "There is a file about {t}. What is its {k}?",
    "Which {k} does the {t} file give?", "Tell me the {k} from the file about {t}.",
    "I need the {k} of the {t} file.",
    "Check the {t} file and tell me the {k}.", "Read the {t} file and give me the {k}.",
    "What {k} is in the {t} file?",
    "Which {k} is written in the {t} file?",
)  # fmt: skip
_ASK_ALL_BARE = (
    "What does the {t} file say?", "Find the {t} file and show me what is in it.", "What is in the {t} file?",
    "There is a file about {t}. What does it say?", "Show me the content of the {t} file.",
    "Read the {t} file to me.",
)  # fmt: skip
_KEYS = (
    "port", "host", "name", "owner", "version", "date", "total", "colour", "city", "password", "user",
    "limit", "price",
    "count", "title", "author", "status", "language", "room", "code", "size", "deadline", "customer",
    "number", "street",
)  # fmt: skip


def _value(rng: random.Random, split: Split, key: str) -> str:
    if key in ("port", "total", "limit", "count", "size", "number"):
        return worlds.digits(rng, split, 1, 5)
    if key in ("name", "owner", "author", "customer"):
        return worlds.full_name(rng, split)
    if key in ("date", "deadline"):
        return worlds.date(rng, split)
    if key == "city":
        return worlds.city(rng, split)
    if key == "price":
        return str(worlds.decimal(rng))
    return worlds.code(rng, split) if key in ("code", "password", "version") else worlds.word(rng, split)


def _names(rng: random.Random, split: Split, topic: str) -> tuple[list[str], str]:
    """File names of which exactly one holds the topic."""
    wanted = f"{topic}.{choose(rng, words.FILE_EXTENSIONS)}"
    roll = rng.random()
    if roll < 0.12:
        wanted = f"{choose(rng, words.FILE_STEMS)}_{wanted}"
    elif roll < 0.2:
        wanted = wanted.replace(".", f"_{worlds.between(rng, 1, 2030)}.", 1)
    names = {wanted: None}
    count = worlds.between(rng, 2, 4)
    while len(names) < count:
        name = worlds.file_name(rng, split)
        if topic not in name:
            names[name] = None
    listed = list(names)
    rng.shuffle(listed)
    return listed, wanted


def _listing_text(rng: random.Random, names: list[str]) -> str:
    roll = rng.random()
    if roll < 0.5:
        return json.dumps(names)
    if roll < 0.75:
        return "\n".join(names)
    return json.dumps({"files": names}) if roll < 0.9 else ", ".join(names)


def _content(rng: random.Random, split: Split, key: str, value: str) -> str:
    others = [other for other in rng.sample(_KEYS, worlds.between(rng, 0, 3)) if other != key]
    pairs = [(key, value), *((other, _value(rng, split, other)) for other in others)]
    rng.shuffle(pairs)
    roll = rng.random()
    if roll < 0.15:
        return json.dumps(dict(pairs))
    separator = choose(rng, (": ", ": ", " = ", "="))
    if roll < 0.3:
        return " ".join(f"The {name} is {text}." for name, text in pairs)
    return "\n".join(f"{name}{separator}{text}" for name, text in pairs)


def _call(rng: random.Random, tool: OfferedTool, value: str) -> Message:
    """A call of the tool's one required parameter, or of none where it has none."""
    parameters = tool.definition["function"]["parameters"]
    return calls(rng, [(tool.name, dict.fromkeys(parameters.get("required", ())[:1], value))])


def _lister_of_all(rng: random.Random, split: Split) -> OfferedTool:
    """A tool that lists the files of the only folder there is."""
    tool = list_folder(rng, split)
    definition = define(
        rng, tool.name, ("List all files", "Returns the names of the files", "List the files"), {}, ()
    )
    return OfferedTool(tool.name, tool.family, definition, tool.ask)


def _file_turn(
    rng: random.Random, split: Split, lister: OfferedTool, reader: OfferedTool, label: str
) -> list[Message]:
    topic = (
        choose(rng, words.FILE_STEMS)
        if split is Split.TRAIN and rng.random() < 0.5
        else worlds.word(rng, split)
    )
    folder = worlds.folder(rng, split) if lister.definition["function"]["parameters"]["properties"] else ""
    key = choose(rng, _KEYS)
    whole = label == "files" and rng.random() < 0.3
    if whole:
        text = fill(rng, _ASK_ALL if folder else _ASK_ALL_BARE, t=topic, f=folder)
    else:
        text = fill(rng, _ASK_KEY if folder else _ASK_KEY_BARE, t=topic, f=folder, k=key)
    first = _call(rng, lister, folder)
    messages: list[Message] = [user(text), first]
    if label == "error" and rng.random() < 0.5:
        failed, reason = toolbox.failure(rng, split)
        return [
            *messages,
            *results(first, [failed]),
            assistant(f"The tool failed: {reason}", "The call failed."),
        ]
    names, wanted = _names(rng, split, topic)
    messages += results(first, [_listing_text(rng, names)])
    second = _call(rng, reader, f"{folder}/{wanted}" if folder else wanted)
    messages.append(second)
    if label == "error":
        failed, reason = toolbox.failure(rng, split)
        return [
            *messages,
            *results(second, [failed]),
            assistant(f"The tool failed: {reason}", "The call failed."),
        ]
    if whole:
        content = worlds.phrase_of(rng, split, 3, 9).capitalize() + choose(rng, (".", "", "!"))
        return [*messages, *results(second, [content]), assistant(content, "The text is here.")]
    value = _value(rng, split, key)
    return [
        *messages,
        *results(second, [_content(rng, split, key, value)]),
        assistant(value, f"It is after {key}."),
    ]


def sample(rng: random.Random, split: Split, label: str = "") -> Conversation:
    """One question that takes two calls; in training sometimes two in a row."""
    lister = _lister_of_all(rng, split) if rng.random() < 0.3 else list_folder(rng, split)
    reader = read_file(rng, split)
    others = [
        tool for tool in toolset(rng, split, worlds.between(rng, 1, 4), lister) if tool.family != "read_file"
    ]
    definitions = toolbox.offered(rng, [*others, reader])
    messages: list[Message] = []
    for _ in range(1 if label or rng.random() < 0.6 else 2):
        chosen = label or choose(rng, ("files", "files", "files", "error"))
        messages += _file_turn(rng, split, lister, reader, chosen)
    return Conversation("chain", tuple(messages), definitions, label=label)
