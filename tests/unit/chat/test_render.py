from __future__ import annotations

from typing import Any

import pytest

from sparkstral.chat.render import render
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.errors import RequestError
from sparkstral.types import ChatMessage, ChatRequest, TextPart, ThinkPart, Tool, ToolCall, ToolChoice
from tests.support.chat_cases import chat_request, load_cases, spell

# The other forms are read by their own protocols; images and sound have no part type here.
CASES = [case for case in load_cases("message_lists") if case["api"] == "chat" and case["report"] != "P62"]


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
