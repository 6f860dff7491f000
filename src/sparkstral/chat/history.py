"""The message lists that agents really send, made into lists that the chat format can say.

Owns the repairs. Each is a function from list to list that is named in the answer when it changed something;
none loses a text. What no repair can mend is refused with the place of the client's message. Must not know
tokens or a protocol's wire form. Source of what the format can say: mistral-common's v15 validator.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparkstral.chat.tool_ids import NativeIds
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, ImagePart, Part, TextPart, ThinkPart, ToolCall

_BETWEEN_MESSAGES = TextPart("\n\n")  # what mistral-common puts between merged messages
_NO_RESULT = "No result: this call was not answered."
MAX_NAME_CHARS = 64
CALL_NAME = re.compile(rf"^[a-zA-Z0-9_-]{{1,{MAX_NAME_CHARS}}}$")  # mistral-common's names, and OpenAI's


def plain_name(name: str) -> str:
    """`name` in the letters and the length that the format has: one name gives one, and another very likely another."""
    if CALL_NAME.fullmatch(name):
        return name
    spelled = re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    if len(spelled) <= MAX_NAME_CHARS:
        return spelled
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{spelled[: MAX_NAME_CHARS - 9]}_{digest}"


@dataclass(frozen=True, slots=True)
class RepairedHistory:
    """A list that the chat format can say: every call has an id of nine alphanumerics, unique in the talk.
    `repairs` names what had to be changed, in order."""

    messages: tuple[ChatMessage, ...]
    repairs: tuple[str, ...]


def repair_history(messages: Sequence[ChatMessage], place: str = "messages") -> RepairedHistory:
    """Repairs the list. Raises RequestError, naming the client's place, for what cannot be mended; `place` is that of
    the list."""
    if not messages:
        raise RequestError(f"{place} is empty; send at least one message.", place)
    _refuse_unmendable(messages)
    current = _without_empty_parts(messages)
    repairs = []
    for step in STEPS:
        repaired = step(current)
        if repaired != current:
            repairs.append(step.__name__)
        current = repaired
    return RepairedHistory(tuple(current), tuple(repairs))


def _refuse_unmendable(messages: Sequence[ChatMessage]) -> None:
    for message in messages:
        if message.role != "assistant" and message.tool_calls:
            raise RequestError(f"{message.place}: only an assistant message can hold tool calls.", message.place)
        if message.role != "assistant" and any(isinstance(part, ThinkPart) for part in message.parts):
            raise RequestError(f"{message.place}: only an assistant message can hold reasoning.", message.place)
        if message.role not in ("user", "tool"):
            for part in message.parts:
                if isinstance(part, ImagePart):
                    sentence = f"`{part.place}` is an image; only a user's message or a tool's result can hold one."
                    raise RequestError(sentence, part.place)
        for call in message.tool_calls:
            if not call.name:
                param = f"{call.place}.name"
                raise RequestError(f"{param} is empty; name the tool that was called.", param)
            try:
                json.loads(call.arguments or "{}")
            except RecursionError:
                param = f"{call.place}.arguments"
                raise RequestError(f"{param} is nested too deeply to be read.", param) from None
            except ValueError:
                pass  # rendered as the text that it is


def _without_empty_parts(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Leaves out parts without a word, which is no repair. A last [THINK] to go on with stays."""
    out = [replace(m, parts=tuple(p for p in m.parts if isinstance(p, ImagePart) or p.text)) for m in messages]
    if ends_in_open_thought(messages) and messages[-1].parts[-1] not in out[-1].parts[-1:]:
        out[-1] = replace(out[-1], parts=(*out[-1].parts, messages[-1].parts[-1]))
    return out


def drop_empty_turns(messages: list[ChatMessage]) -> list[ChatMessage]:
    """System and assistant turns without a word or a call, as clients send after an aborted answer."""
    return [m for m in messages if m.role in ("user", "tool") or m.tool_calls or m.parts]


def system_after_answer_to_user(messages: list[ChatMessage]) -> list[ChatMessage]:
    """A system message once the assistant has spoken is told by the user: no system block may stand there."""
    answered = False
    out = []
    for message in messages:
        answered = answered or message.role in ("assistant", "tool")
        out.append(replace(message, role="user") if answered and message.role == "system" else message)
    return out


def merge_turns(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Turns of one speaker in a row become one, their texts joined by an empty line.

    Not when the first has calls and the second a text: calls come last in a turn, so the order would be lost.
    """
    turns: list[list[ChatMessage]] = []
    for message in messages:
        previous = turns[-1][-1] if turns else None
        if (
            previous is not None
            and message.role == previous.role
            and message.role in ("user", "assistant")
            and not (previous.tool_calls and message.parts)
        ):
            turns[-1].append(message)
        else:
            turns.append([message])
    return [turn[0] if len(turn) == 1 else _merged(turn) for turn in turns]


def _merged(turn: list[ChatMessage]) -> ChatMessage:
    calls = tuple(call for message in turn for call in message.tool_calls)
    return replace(turn[-1], parts=_joined([message.parts for message in turn]), tool_calls=calls)


def _joined(contents: list[tuple[Part, ...]]) -> tuple[Part, ...]:
    """The contents one after the other, an empty line where two texts of different messages meet."""
    parts: list[Part] = []
    for content in contents:
        if parts and content and isinstance(parts[-1], TextPart) and isinstance(content[0], TextPart):
            parts.append(_BETWEEN_MESSAGES)
        parts.extend(content)
    return tuple(parts)


def close_thoughts(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Only the last words of the list can be a thought that is still open."""
    out = [_with_closed_thoughts(message) for message in messages]
    if out and ends_in_open_thought(messages):
        out[-1] = replace(out[-1], parts=(*out[-1].parts[:-1], messages[-1].parts[-1]))
    return out


def _with_closed_thoughts(message: ChatMessage) -> ChatMessage:
    parts = tuple(replace(p, closed=True) if isinstance(p, ThinkPart) else p for p in message.parts)
    return replace(message, parts=parts)


def ends_in_open_thought(messages: Sequence[ChatMessage]) -> bool:
    """Whether the model is to go on inside a [THINK] of the last turn."""
    if not messages or not messages[-1].parts or messages[-1].tool_calls:
        return False
    last = messages[-1].parts[-1]
    return isinstance(last, ThinkPart) and not last.closed


def plain_call_names(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Names of past calls that this format cannot say (`files.read`), as other models' talks hold them."""

    def plain(message: ChatMessage) -> ChatMessage:
        calls = (replace(call, name=plain_name(call.name)) for call in message.tool_calls)
        return replace(message, tool_calls=tuple(calls))

    return [plain(message) for message in messages]


def native_tool_ids(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Gives every call an id of its own and every result the id of its call, or None when it has none.

    An id may come again later in the talk, or twice in a turn: a result answers the first open call of its id
    in the newest turn that has the id; when all are answered it belongs to the last of them. A result without
    an id answers the next open call of the newest turn.
    """
    out = []
    native_ids = NativeIds()
    open_calls: dict[str | None, deque[str]] = {}  # client's id → native ids of the newest turn that has it
    answered: dict[str | None, str] = {}  # client's id → native id of the call that was answered last
    turn: dict[str, str] = {}  # native → client's id of the newest turn's open calls, in order
    for message in messages:
        if message.tool_calls:
            calls = tuple(replace(call, id=native_ids.add(call.id)) for call in message.tool_calls)
            turn = {new.id: old.id for new, old in zip(calls, message.tool_calls, strict=True)}
            open_calls.update((client_id, deque()) for client_id in turn.values())
            for native, client_id in turn.items():
                open_calls[client_id].append(native)
            message = replace(message, tool_calls=calls)
        elif message.role == "tool":
            wanted = message.tool_call_id
            if wanted is None and turn:
                wanted = next(iter(turn.values()))
            if open_calls.get(wanted):
                answered[wanted] = open_calls[wanted].popleft()
                turn.pop(answered[wanted], None)
            message = replace(message, tool_call_id=answered.get(wanted))
        out.append(message)
    return out


def orphan_results_to_user(messages: list[ChatMessage]) -> list[ChatMessage]:
    """A result whose call is not in the list (cut away with a talk's beginning) is told by the user."""

    def told(message: ChatMessage) -> ChatMessage:
        heading = TextPart(f"Result of {message.name or 'a tool'}:\n")
        return ChatMessage("user", (heading, *message.parts))

    return [told(m) if m.role == "tool" and m.tool_call_id is None else m for m in messages]


def join_repeated_results(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Several results of one call become one, joined by an empty line."""
    contents: dict[str | None, list[tuple[Part, ...]]] = {}
    for message in messages:
        if message.role == "tool":
            contents.setdefault(message.tool_call_id, []).append(message.parts)
    out = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in contents:
                continue
            message = replace(message, parts=_joined(contents.pop(message.tool_call_id)))
        out.append(message)
    return out


def results_follow_calls(messages: list[ChatMessage]) -> list[ChatMessage]:
    """The results of a turn stand right after it, in the order of its calls."""
    results = {m.tool_call_id: m for m in messages if m.role == "tool"}
    out = []
    for message in messages:
        if message.role != "tool":
            out.append(message)
            out.extend(results[call.id] for call in message.tool_calls if call.id in results)
    return out


def add_missing_results(messages: list[ChatMessage]) -> list[ChatMessage]:
    """A call that was never answered (the user broke in) gets a result that says so."""
    results = {m.tool_call_id: m for m in messages if m.role == "tool"}
    missing = (TextPart(_NO_RESULT),)
    out = []
    for message in messages:
        if message.role != "tool":
            out.append(message)
            out.extend(
                results.get(call.id) or ChatMessage("tool", missing, tool_call_id=call.id)
                for call in message.tool_calls
            )
    return out


def quote_arguments(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Arguments of past calls that are no JSON are told as the text that they are."""

    def quoted(call: ToolCall) -> ToolCall:
        try:
            json.loads(call.arguments or "{}")
        except ValueError:
            if call.arguments.strip():
                return replace(call, arguments=json.dumps(call.arguments))
        return call

    return [replace(m, tool_calls=tuple(map(quoted, m.tool_calls))) for m in messages]


def drop_early_prefix(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Only the last turn can be one that is to be continued."""
    return [*(replace(m, prefix=False) for m in messages[:-1]), *messages[-1:]]


def continue_last_turn(messages: list[ChatMessage]) -> list[ChatMessage]:
    """A list that ends in an assistant's turn asks for its continuation; no other turn can be continued."""
    last = len(messages) - 1
    return [replace(m, prefix=i == last and m.role == "assistant") for i, m in enumerate(messages)]


def add_user_turn(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Tools and settings are told with the first user turn: one must come before any call, be it empty."""
    first = next((m for m in messages if m.role == "user" or m.tool_calls), None)
    if first is not None and first.role == "user":
        return messages
    start = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    return [*messages[:start], ChatMessage("user"), *messages[start:]]


# In the order in which they are taken; each is told by its function's name.
STEPS: tuple[Callable[[list[ChatMessage]], list[ChatMessage]], ...] = (
    drop_empty_turns,
    system_after_answer_to_user,
    merge_turns,
    close_thoughts,
    plain_call_names,
    native_tool_ids,
    orphan_results_to_user,
    join_repeated_results,
    results_follow_calls,
    add_missing_results,
    quote_arguments,
    drop_early_prefix,
    continue_last_turn,
    add_user_turn,
)
