from __future__ import annotations

from typing import Any

import pytest

from sparkstral.chat.render import render
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.errors import RequestError
from sparkstral.types import (
    ChatMessage,
    ChatRequest,
    ResponseFormat,
    TextPart,
    ThinkPart,
    Tool,
    ToolCall,
    ToolChoice,
)
from tests.support.chat_cases import chat_request, load_cases, spell

# The other forms are read by their own protocols, and so are the words for roles (tests/api has these cases, and
# those of images); sound has no part type here.
CASES = [
    case
    for case in load_cases("message_lists")
    if case["api"] == "chat" and case["report"] != "P62" and case["id"] != "ml-unknown-role"
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any], tokenizer: ChatTokenizer) -> None:
    if case["expect"] != "accept":
        with pytest.raises(RequestError) as refused:
            render(chat_request(case["request"]), tokenizer)
        assert (refused.value.param or "").startswith(case["expect"]["param"])
        return
    prompt = render(chat_request(case["request"]), tokenizer).prompt
    spelled = spell(prompt.token_ids, tokenizer)
    if "expect_pieces" in case:
        assert spelled == "".join(case["expect_pieces"])
    if "expect_control_ids" in case:
        assert [i for i in prompt.token_ids if i < 1000] == case["expect_control_ids"]
    if "expect_ids" in case:
        assert list(prompt.token_ids) == case["expect_ids"]
    position = 0
    for text in case.get("expect_contains", ()):
        position = spelled.index(text, position) + len(text)
    assert not prompt.prefilled_think


def ask(*messages: ChatMessage, **fields: Any) -> ChatRequest:
    return ChatRequest((ChatMessage("user", (TextPart("Hi"),)), *messages), **fields)


def assistant(*parts: TextPart | ThinkPart, prefix: bool = False) -> ChatMessage:
    return ChatMessage("assistant", parts, prefix=prefix)


SETTINGS = '[MODEL_SETTINGS]{"reasoning_effort": "none"}[/MODEL_SETTINGS]'


def test_a_thought_left_open_is_prefilled(tokenizer: ChatTokenizer) -> None:
    rendered = render(ask(assistant(ThinkPart("Let me", closed=False), prefix=True)), tokenizer)
    assert spell(rendered.prompt.token_ids, tokenizer) == f"<s>{SETTINGS}[INST]Hi[/INST][THINK]Let me"
    assert rendered.prompt.prefilled_think
    closed = render(ask(assistant(ThinkPart("Let me"), TextPart("Well, "))), tokenizer)
    assert spell(closed.prompt.token_ids, tokenizer).endswith("[/INST][THINK]Let me[/THINK]Well, ")
    assert not closed.prompt.prefilled_think
    assert closed.repairs == ("continue_last_turn",)


def test_a_list_without_a_user_still_tells_the_settings(tokenizer: ChatTokenizer) -> None:
    request = ChatRequest((ChatMessage("system", (TextPart("Greet."),)),))
    rendered = render(request, tokenizer)
    assert spell(rendered.prompt.token_ids, tokenizer) == (
        f"<s>[SYSTEM_PROMPT]Greet.[/SYSTEM_PROMPT]{SETTINGS}[INST][/INST]"
    )
    assert rendered.repairs == ("add_user_turn",)


def test_repairs_are_handed_on(tokenizer: ChatTokenizer) -> None:
    called = ChatMessage("assistant", tool_calls=(ToolCall("call_1", "f", ""),))
    rendered = render(ask(called, ChatMessage("tool", (TextPart("1"),), tool_call_id="call_1")), tokenizer)
    assert rendered.repairs == ("native_tool_ids",)


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ("", "{}"),
        ('{"a":1.50, "b":"é"}', '{"a": 1.5, "b": "é"}'),
        ('{"a": ', '"{\\"a\\": "'),
        ("9" * 5000, '"' + "9" * 5000 + '"'),  # Python reads no number of more than 4,300 digits
    ],
)
def test_arguments_of_past_calls(arguments: str, rendered: str, tokenizer: ChatTokenizer) -> None:
    called = ChatMessage("assistant", tool_calls=(ToolCall("aaaaaaaaa", "f", arguments),))
    prompt = render(ask(called), tokenizer).prompt
    assert f"[TOOL_CALLS]f[ARGS]{rendered}</s>" in spell(prompt.token_ids, tokenizer)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": (Tool("tide table", "", {}),)}, "tools[].name"),
        ({"tools": (Tool("tide\n", "", {}),)}, "tools[].name"),
        ({"tools": (Tool("ok", "", {}), Tool("x" * 65, "", {}))}, "tools[].name"),
        ({"tools": (Tool("f", "", {"type": "strng"}),)}, "tools[].parameters"),
        ({"tools": (Tool("f", "", {"type": "array"}),)}, "tools[].parameters"),
        ({"tools": (Tool("f", "", nested(900)),)}, "tools[].parameters"),
        ({"tool_choice": ToolChoice("required")}, "tool_choice"),
        ({"tools": (Tool("f", "", {}),), "tool_choice": ToolChoice("named", "g")}, "tool_choice"),
        ({"response_format": ResponseFormat("json_schema", {"type": "strng"})}, "response_format"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str, tokenizer: ChatTokenizer) -> None:
    with pytest.raises(RequestError) as refused:
        render(ask(**fields), tokenizer)
    assert refused.value.param == param


def test_what_the_library_has_against_a_request_is_one_clean_sentence(tokenizer: ChatTokenizer) -> None:
    not_a_text: Any = 5
    with pytest.raises(RequestError) as refused:
        render(ask(tools=(Tool("f", not_a_text, {}),)), tokenizer)
    assert str(refused.value) == "The messages cannot be rendered: description: Input should be a valid string."


def test_json_cannot_be_enforced_on_a_continued_text(tokenizer: ChatTokenizer) -> None:
    json_object = ResponseFormat("json_object")
    with pytest.raises(RequestError, match="to be continued") as refused:
        render(ask(assistant(TextPart('{"a":')), response_format=json_object), tokenizer)
    assert refused.value.param == "response_format"
    render(ask(assistant(ThinkPart("", closed=False)), response_format=json_object), tokenizer)
