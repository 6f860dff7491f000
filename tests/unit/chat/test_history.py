"""Each repair by its name: what it mends, and that it leaves a good list alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparkstral.chat.history import repair_history
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, Part, TextPart, ThinkPart, ToolCall


def say(role: str, *texts: str | Part, **fields: object) -> ChatMessage:
    parts = tuple(TextPart(text) if isinstance(text, str) else text for text in texts)
    return ChatMessage(role, parts, **fields)  # type: ignore[arg-type]


def call(*ids: str, name: str = "look") -> ChatMessage:
    return ChatMessage("assistant", tool_calls=tuple(ToolCall(i, name, "{}") for i in ids))


def result(call_id: str | None, text: str) -> ChatMessage:
    return say("tool", text, tool_call_id=call_id)


def told(messages: Sequence[ChatMessage]) -> list[str]:
    """The repaired list in short: role, texts, calls."""
    return [
        f"{m.role}: {''.join(part.text for part in m.parts)}" + "".join(f" +{c.name}" for c in m.tool_calls)
        for m in messages
    ]


def test_a_good_list_is_left_alone() -> None:
    messages = (
        say("system", "Be brief."),
        say("user", "Hi"),
        call("aaaaaaaa1", "aaaaaaaa2"),
        result("aaaaaaaa1", "one"),
        result("aaaaaaaa2", "two"),
        say("user", "<reminder>"),
        say("assistant", ThinkPart("hm"), "Yes."),
        say("user", "And?"),
        say("assistant", "Well", prefix=True),
    )
    history = repair_history(messages)
    assert history.repairs == ()
    assert history.messages == messages


@pytest.mark.parametrize(
    ("repair", "messages", "expected"),
    [
        (
            "drop_empty_turns",
            [say("system", ""), say("user", "Hi"), say("assistant"), say("user", "Still there?")],
            ["user: Hi\n\nStill there?"],
        ),
        (
            "drop_empty_turns",
            [say("user", "Hi"), say("assistant", ThinkPart(""), "")],
            ["user: Hi"],
        ),
        (
            "system_after_answer_to_user",
            [say("user", "Hi"), say("assistant", "Ho"), say("system", "Shout."), say("user", "More")],
            ["user: Hi", "assistant: Ho", "user: Shout.\n\nMore"],
        ),
        (
            "merge_turns",
            [
                say("user", "a", "b"),
                say("user", "c"),
                say("assistant", "d"),
                call("aaaaaaaa1", "aaaaaaaa2"),
                result("aaaaaaaa1", "1"),
                result("aaaaaaaa2", "2"),
            ],
            ["user: ab\n\nc", "assistant: d +look +look", "tool: 1", "tool: 2"],
        ),
        ("merge_turns", [say("user", ""), say("user", "a")], ["user: a"]),
        (
            "close_thoughts",
            [say("user", "Hi"), say("assistant", ThinkPart("hm", closed=False)), say("user", "Go on")],
            ["user: Hi", "assistant: hm", "user: Go on"],
        ),
        (
            "plain_call_names",
            [say("user", "Hi"), call("aaaaaaaa1", name="files.read"), result("aaaaaaaa1", "x")],
            ["user: Hi", "assistant:  +files_read", "tool: x"],
        ),
        (
            "native_tool_ids",
            [say("user", "Hi"), call("call_1"), result("call_1", "x")],
            ["user: Hi", "assistant:  +look", "tool: x"],
        ),
        (
            "orphan_results_to_user",
            [say("tool", "12 degrees", tool_call_id="gone", name="weather"), say("user", "So?")],
            ["user: Result of weather:\n12 degrees", "user: So?"],
        ),
        (
            "join_repeated_results",
            [say("user", "Hi"), call("aaaaaaaa1"), result("aaaaaaaa1", "x"), result("aaaaaaaa1", "y")],
            ["user: Hi", "assistant:  +look", "tool: x\n\ny"],
        ),
        (
            "results_follow_calls",
            [
                say("user", "Hi"),
                call("aaaaaaaa1", "aaaaaaaa2"),
                result("aaaaaaaa2", "2"),
                say("user", "Hurry"),
                result("aaaaaaaa1", "1"),
            ],
            ["user: Hi", "assistant:  +look +look", "tool: 1", "tool: 2", "user: Hurry"],
        ),
        (
            "add_missing_results",
            [
                say("user", "Hi"),
                call("aaaaaaaa1", "aaaaaaaa2"),
                result("aaaaaaaa2", "2"),
                say("user", "Stop"),
            ],
            [
                "user: Hi",
                "assistant:  +look +look",
                "tool: No result: this call was not answered.",
                "tool: 2",
                "user: Stop",
            ],
        ),
        (
            "add_missing_results",
            [say("user", "Hi"), call("aaaaaaaa1"), say("assistant", "I stopped."), say("user", "Why?")],
            [
                "user: Hi",
                "assistant:  +look",
                "tool: No result: this call was not answered.",
                "assistant: I stopped.",
                "user: Why?",
            ],
        ),
        ("continue_last_turn", [say("user", "Hi"), say("assistant", "Ho")], ["user: Hi", "assistant: Ho"]),
        (
            "drop_early_prefix",
            [say("user", "Hi"), say("assistant", "Ho", prefix=True), say("user", "Go on")],
            ["user: Hi", "assistant: Ho", "user: Go on"],
        ),
        ("add_user_turn", [say("system", "Greet.")], ["system: Greet.", "user: "]),
        (
            "add_user_turn",
            [call("aaaaaaaa1"), result("aaaaaaaa1", "1"), say("user", "So?")],
            ["user: ", "assistant:  +look", "tool: 1", "user: So?"],
        ),
    ],
)
def test_repair(repair: str, messages: list[ChatMessage], expected: list[str]) -> None:
    history = repair_history(messages)
    assert repair in history.repairs
    assert told(history.messages) == expected
    again = repair_history(history.messages).repairs
    assert set(again) <= {"merge_turns"}  # two users' turns in a row are left to the renderer


def test_parts_without_a_word_are_left_out_without_mention() -> None:
    history = repair_history(
        [say("user", "", "Hi"), say("assistant", ThinkPart(""), "Ho"), say("user", "Hm")]
    )
    assert history.messages == (say("user", "Hi"), say("assistant", "Ho"), say("user", "Hm"))
    assert history.repairs == ()


def test_only_the_last_turn_is_continued() -> None:
    history = repair_history([say("user", "a"), say("assistant", "b", prefix=True), say("user", "c")])
    assert not any(message.prefix for message in history.messages)
    assert repair_history([say("user", "a"), say("assistant", "b")]).messages[-1].prefix


def test_an_open_thought_at_the_end_stays_open() -> None:
    messages = (say("user", "Hi"), say("assistant", ThinkPart("", closed=False), prefix=True))
    history = repair_history(messages)
    assert (history.messages, history.repairs) == (messages, ())


def test_results_find_the_calls_of_ids_that_come_again() -> None:
    history = repair_history(
        [say("user", "x"), call("0", "0"), result("0", "a"), result("0", "b"), call("0"), result("0", "c")]
    )
    calls = [c.id for m in history.messages for c in m.tool_calls]
    answers = {m.tool_call_id: m.parts[0].text for m in history.messages if m.role == "tool"}
    assert len(set(calls)) == 3
    assert [answers[i] for i in calls] == ["a", "b", "c"]


def test_results_without_an_id_answer_the_calls_in_order() -> None:
    history = repair_history([say("user", "x"), call("p", "q"), result(None, "a"), result(None, "b")])
    assert told(history.messages)[2:] == ["tool: a", "tool: b"]
    assert [m.tool_call_id for m in history.messages[2:]] == [c.id for c in history.messages[1].tool_calls]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([say("user", "a", tool_calls=(ToolCall("i", "f", "{}"),), place="x[0]")], "x[0]"),
        ([say("user", "a"), say("user", ThinkPart("b"), place="x[1]")], "x[1]"),
        ([say("user", "a"), ChatMessage("assistant", tool_calls=(ToolCall("i", "", "{}", "x.y"),))], "x.y.name"),
        (
            [ChatMessage("assistant", tool_calls=(ToolCall("i", "f", "[" * 200_000, "x.y"),))],
            "x.y.arguments",
        ),
    ],
)
def test_refusals_name_the_place(messages: list[ChatMessage], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        repair_history(messages)
    assert refused.value.param == param


@pytest.mark.timeout(30)
def test_every_repair_takes_linear_time() -> None:
    messages = [m for _ in range(10_000) for m in (call("0"), result("0", "a"), result("1", "b"))]
    assert len(repair_history(messages).messages) == 30_001
