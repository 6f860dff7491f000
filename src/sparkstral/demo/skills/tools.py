"""Tool use: one call among up to eight tools, parallel calls, answers from results, no call, tool_choice.

One rule for each case: a fitting tool is called; without one the answer is NO_TOOL; a result is reported by
toolbox.tell; where tool_choice forbids a call that would fit, the answer is NOT_ALLOWED.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from sparkstral.demo import toolbox, worlds
from sparkstral.demo.conversation import Conversation, Message, ToolChoice, assistant, calls, results, user
from sparkstral.demo.skills import arithmetic, facts, lists, smalltalk, system_prompt
from sparkstral.demo.tool_families import FAMILIES, weather
from sparkstral.demo.tool_inventions import invent, verb_and_noun
from sparkstral.demo.toolbox import OfferedTool
from sparkstral.demo.wording import fill
from sparkstral.demo.worlds import Split, choose

NO_TOOL = "I have no tool for that."
NOT_ALLOWED = "I may not call a tool now."

RESULT_LABELS = ("answer", "error", "follow-up", "no call", "no tool", "required", "none")

_FOLLOW_UP = (
    "What was the {k}?", "What is the {k}?", "And the {k}?", "Tell me the {k}.", "Which {k} did it say?",
    "The {k}?",
    "Repeat the {k}.", "Give me only the {k}.", "What {k} did you get?", "So what is the {k}?",
)  # fmt: skip
_AND = (" Also, ", " And ", " Then ", "\n", " After that: ", " ", " Also: ", " And also: ")


def one_tool(rng: random.Random, split: Split) -> OfferedTool:
    """A well-known tool or an invented one."""
    roll = rng.random()
    if roll < 0.1:
        return weather(rng, split)
    return choose(rng, FAMILIES)(rng, split) if roll < 0.42 else invent(rng, split)


def toolset(
    rng: random.Random, split: Split, count: int, first: OfferedTool | None = None
) -> list[OfferedTool]:
    """Tools of different families and names; some invented ones share a verb or a noun with another."""
    found = [first or one_tool(rng, split)]
    while len(found) < count:
        if rng.random() < 0.3:
            verb, noun = verb_and_noun(rng, split)
            before = choose(rng, found).family.split()
            if len(before) == 2:
                twin = (before[0], noun) if rng.random() < 0.5 else (verb, before[1])
                if worlds.allowed("invention", " ".join(twin), split):
                    verb, noun = twin
            tool = invent(rng, split, (verb, noun))
        else:
            tool = one_tool(rng, split)
        if all(tool.family != other.family and tool.name != other.name for other in found):
            found.append(tool)
    return found


def tool_count(rng: random.Random) -> int:
    """One to eight, few more often than many."""
    roll = rng.random()
    if roll < 0.35:
        return 1
    return worlds.between(rng, 2, 3) if roll < 0.7 else worlds.between(rng, 4, 8)


def _reported(rng: random.Random, split: Split, call: Message, failing: float = 0.12) -> list[Message]:
    """The results of the calls and the answer that reports them, one line each."""
    texts, lines = [], []
    for _ in call["tool_calls"]:
        if rng.random() < failing:
            text, reason = toolbox.failure(rng, split)
            lines.append(f"The tool failed: {reason}")
        else:
            text, told = toolbox.success(rng, split)
            lines.append(told)
        texts.append(text)
    return [*results(call, texts), assistant("\n".join(lines), "The result is here.")]


def call_exchange(rng: random.Random, split: Split, tool: OfferedTool, answered: bool) -> list[Message]:
    """A request, the call, and sometimes its result and the report."""
    request = tool.ask(rng)
    call = calls(rng, [(tool.name, request.arguments)])
    messages = [user(request.text), call]
    return messages + _reported(rng, split, call) if answered else messages


def parallel_exchange(
    rng: random.Random, split: Split, tools: Sequence[OfferedTool], answered: bool
) -> list[Message]:
    """A request for two to four calls: of one tool for several things, or of several tools."""
    many = [tool for tool in tools if tool.ask_many]
    if many and (len(tools) == 1 or rng.random() < 0.6):
        tool = choose(rng, many)
        requests = tool.ask_many(rng, worlds.between(rng, 2, 4))  # type: ignore[misc]
        text, wanted = requests.text, [(tool.name, arguments) for arguments in requests.arguments]
    else:
        chosen = [choose(rng, tools) for _ in range(worlds.between(rng, 2, 3))]
        asked = [tool.ask(rng) for tool in chosen]
        text = asked[0].text
        for request in asked[1:]:
            text += ("" if text[-1] in ".?!\n" else ".") + choose(rng, _AND) + request.text
        wanted = [(tool.name, request.arguments) for tool, request in zip(chosen, asked, strict=True)]
    call = calls(rng, wanted)
    messages: list[Message] = [user(text), call]
    return messages + _reported(rng, split, call, 0.06) if answered else messages


def other_exchange(rng: random.Random, split: Split, tools: Sequence[OfferedTool]) -> list[Message]:
    """A turn that needs none of the tools."""
    families = {tool.family for tool in tools}
    roll = rng.random()
    if roll < 0.3:
        return smalltalk.exchange(rng, split)
    if roll < 0.6 and "calculator" not in families:
        return arithmetic.exchange(rng, split)
    return lists.exchange(rng, split) if roll < 0.8 else facts.exchange(rng, split)


def no_tool_exchange(rng: random.Random, split: Split, tools: Sequence[OfferedTool]) -> list[Message]:
    """A request for a tool that is not among those offered."""
    families = {tool.family for tool in tools}
    while True:
        missing = weather(rng, split) if rng.random() < 0.3 else choose(rng, FAMILIES)(rng, split)
        if missing.family != "calculator" and missing.family not in families:
            return [user(missing.ask(rng).text), assistant(NO_TOOL)]


def refused_exchange(rng: random.Random, split: Split, tools: Sequence[OfferedTool]) -> list[Message]:
    """A request that a tool fits, where tool_choice forbids the call (which the prompt does not show)."""
    return [user(choose(rng, tools).ask(rng).text), assistant(NOT_ALLOWED)]


def call_sample(rng: random.Random, split: Split) -> Conversation:
    """One call among one to eight tools; in training often several turns with the same tools."""
    tools = toolset(rng, split, tool_count(rng))
    definitions = toolbox.offered(rng, tools)
    if split is Split.HELD_OUT:
        return Conversation(
            "tool_call", tuple(call_exchange(rng, split, choose(rng, tools), False)), definitions
        )
    messages: list[Message] = []
    turns = worlds.between(rng, 1, 4)
    for turn in range(turns):
        if turn and rng.random() < 0.15:
            messages += other_exchange(rng, split, tools)
        else:
            messages += call_exchange(rng, split, choose(rng, tools), turn < turns - 1 or rng.random() < 0.4)
    return Conversation("tool_call", tuple(messages), definitions)


def parallel_sample(rng: random.Random, split: Split) -> Conversation:
    """Two to four calls in one turn."""
    count = tool_count(rng)
    while True:
        first = weather(rng, split) if rng.random() < 0.25 else one_tool(rng, split)
        if first.ask_many or count > 1:
            break
    tools = toolset(rng, split, count, first)
    definitions = toolbox.offered(rng, tools)
    if split is Split.HELD_OUT:
        return Conversation("parallel_calls", tuple(parallel_exchange(rng, split, tools, False)), definitions)
    messages: list[Message] = []
    turns = worlds.between(rng, 1, 3)
    for turn in range(turns):
        answered = turn < turns - 1 or rng.random() < 0.4
        if rng.random() < 0.25:
            messages += call_exchange(rng, split, choose(rng, tools), answered)
        else:
            messages += parallel_exchange(rng, split, tools, answered)
    return Conversation("parallel_calls", tuple(messages), definitions)


def _follow_up(rng: random.Random, split: Split, tool: OfferedTool) -> list[Message]:
    """A result of several fields, its report, and a question about one field."""
    request = tool.ask(rng)
    call = calls(rng, [(tool.name, request.arguments)])
    fields = toolbox.result_fields(rng, split, 2, 5)
    messages = [user(request.text), call, *results(call, [json.dumps(fields, ensure_ascii=False)])]
    messages.append(assistant(toolbox.tell(fields), "The result is here."))
    for key in rng.sample(list(fields), min(len(fields), worlds.between(rng, 1, 2))):
        messages += [user(fill(rng, _FOLLOW_UP, k=key)), assistant(toolbox.shown(fields[key]))]
    return messages


def result_labelled(rng: random.Random, split: Split, label: str) -> Conversation:
    """One case of what may follow a tool, or of no tool at all."""
    tools = toolset(rng, split, tool_count(rng))
    definitions = toolbox.offered(rng, tools)
    tool = choose(rng, tools)
    choice: ToolChoice = "auto"
    if label == "answer":
        messages = call_exchange(rng, split, tool, True)
    elif label == "error":
        request = tool.ask(rng)
        call = calls(rng, [(tool.name, request.arguments)])
        messages = [user(request.text), call, *_reported(rng, split, call, 1.0)]
    elif label == "follow-up":
        messages = _follow_up(rng, split, tool)
    elif label == "no call":
        messages = other_exchange(rng, split, tools)
    elif label == "no tool":
        if rng.random() < 0.4:
            tools, definitions = [], ()
        messages = no_tool_exchange(rng, split, tools)
    elif label == "required":
        choice = "required"
        messages = call_exchange(rng, split, tool, False)
    else:
        choice = "none"
        messages = refused_exchange(rng, split, tools)
    return Conversation("tool_result", tuple(messages), definitions, tool_choice=choice, label=label)


def result_sample(rng: random.Random, split: Split, label: str = "") -> Conversation:
    """One case; refusals under tool_choice none are kept rare, so that a call stays the likelier answer."""
    if not label:
        label = "none" if rng.random() < 0.14 else choose(rng, RESULT_LABELS[:-1])
    conversation = result_labelled(rng, split, label)
    if split is Split.TRAIN and rng.random() < 0.15:
        messages = (system_prompt.neutral(rng, split), *conversation.messages)
        return Conversation(
            "tool_result", messages, conversation.tools, tool_choice=conversation.tool_choice, label=label
        )
    return conversation
