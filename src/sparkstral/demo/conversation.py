"""A conversation with its right answers, and the judges of an answer.

Owns: Conversation (messages in OpenAI chat form), the cuts before each assistant turn, and exact comparison.
Knows nothing of how conversations are made, of tokens or of the engine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Message = dict[str, Any]
Tool = dict[str, Any]
ReasoningEffort = Literal["none", "high"]
ToolChoice = Literal["auto", "none", "required"]

_ID_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
# What a turn thinks at high effort when there is nothing to work out.
PLAIN_REASONING = "This is simple."


@dataclass(frozen=True)
class Conversation:
    """A whole conversation, the right assistant turns included.

    messages: system, user, assistant and tool messages in OpenAI chat form. An assistant turn may hold
    `reasoning` (text thought before its content) and `tool_calls` (9-character ids, arguments as JSON text).
    response_schema: JSON schema in force for the last answer, or None.
    """

    skill: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    reasoning_effort: ReasoningEffort = "none"
    tool_choice: ToolChoice = "auto"
    response_schema: dict[str, Any] | None = None
    label: str = ""


@dataclass(frozen=True)
class EvalTurn:
    """The messages before one assistant turn, and that turn."""

    prompt: tuple[Message, ...]
    expected: Message


@dataclass(frozen=True)
class EvalItem:
    """One held-out conversation; it is passed when every one of its turns is."""

    skill: str
    label: str
    conversation: Conversation

    @property
    def turns(self) -> tuple[EvalTurn, ...]:
        """The conversation cut before each assistant turn."""
        messages = self.conversation.messages
        return tuple(
            EvalTurn(messages[:index], message)
            for index, message in enumerate(messages)
            if message["role"] == "assistant"
        )

    def wrong(self, turn: EvalTurn, answer: Message) -> str | None:
        """Why an answer to one of the turns is wrong, or None when it is right."""
        return wrong_answer(turn.expected, answer, self.conversation.reasoning_effort)


def system(content: str) -> Message:
    """A system message."""
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    """A user message."""
    return {"role": "user", "content": content}


def assistant(content: str, reasoning: str = "") -> Message:
    """An assistant turn with text; reasoning is kept only where the effort is high."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning"] = reasoning
    return message


_OTHER_VOICES = (
    "Ok.", "OK!", "Got it.", "Got it, thanks for telling me!", "Sure.", "Understood.", "I will remember that.",
    "Nice to meet you!", "Great, thank you.", "Thanks, I have noted it.", "Alright! How can I help?", "Good to know.",
    "Hello! How can I help you today?", "Okay, I'll keep that in mind.", "Of course.", "Cool!", "That is nice.",
)  # fmt: skip


def another_voice(rng: random.Random) -> Message:
    """An assistant turn as another model would put it: part of a history, never an answer to be learnt."""
    return {"role": "assistant", "content": rng.choice(_OTHER_VOICES), "is_learnt": False}


def calls(rng: random.Random, wanted: Iterable[tuple[str, dict[str, Any]]]) -> Message:
    """An assistant turn that calls tools: (name, arguments) in order."""
    tool_calls = [
        {
            "id": "".join(rng.choices(_ID_ALPHABET, k=9)),
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for name, arguments in wanted
    ]
    names = " and ".join(dict.fromkeys(call["function"]["name"] for call in tool_calls))  # type: ignore[index]
    return {"role": "assistant", "content": "", "reasoning": f"I need {names}.", "tool_calls": tool_calls}


def results(call_message: Message, contents: Iterable[str]) -> list[Message]:
    """One tool message for each call of an assistant turn, in order."""
    return [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": content}
        for call, content in zip(call_message["tool_calls"], contents, strict=True)
    ]


def with_effort(messages: Iterable[Message], effort: ReasoningEffort) -> tuple[Message, ...]:
    """The same messages with reasoning in every assistant turn (high) or in none (none)."""
    finished = []
    for message in messages:
        if message["role"] == "assistant":
            if effort == "high" and "reasoning" not in message:
                message = {"role": "assistant", "reasoning": PLAIN_REASONING, **message}
            elif effort == "none" and "reasoning" in message:
                message = {key: value for key, value in message.items() if key != "reasoning"}
        finished.append(message)
    return tuple(finished)


def wrong_answer(expected: Message, answer: Message, effort: ReasoningEffort) -> str | None:
    """Why an answer differs from the expected turn, or None when it is right.

    Text is equal after stripping; a JSON object or array is compared as parsed; calls are compared in order
    by name and parsed arguments; reasoning must be there at high effort and absent at none, whatever it says.
    """
    reasoned = bool((answer.get("reasoning") or "").strip())
    if reasoned != (effort == "high"):
        return (
            f"expected {'some' if effort == 'high' else 'no'} reasoning, got {'some' if reasoned else 'none'}"
        )
    want_calls = [_parsed_call(call) for call in expected.get("tool_calls") or ()]
    got_calls = [_parsed_call(call) for call in answer.get("tool_calls") or ()]
    if want_calls != got_calls:
        return f"expected calls {want_calls}, got {got_calls}"
    want = (expected.get("content") or "").strip()
    got = (answer.get("content") or "").strip()
    if want == got:
        return None
    want_json = _structure(want)
    if want_json is not None and want_json == _structure(got):
        return None
    return f"expected {want!r}, got {got!r}"


def _parsed_call(call: dict[str, Any]) -> tuple[str, str]:
    function = call["function"]
    try:
        arguments = json.dumps(json.loads(function["arguments"]), sort_keys=True)
    except json.JSONDecodeError:
        arguments = f"not JSON: {function['arguments']}"
    return function["name"], arguments


def _structure(text: str) -> str | None:
    """A JSON object or array as text with sorted keys (so that true is not 1); None for anything else."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except json.JSONDecodeError:
        return None
