"""Whatever list of messages comes: it is rendered, no word is lost, and no word becomes a control token."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from mistral_common.protocol.instruct.request import ChatCompletionRequest

from sparkstral.chat.history import repair_history
from sparkstral.chat.render import render
from sparkstral.types import ChatMessage, ChatRequest, TextPart, ThinkPart, ToolCall
from tests.support.chat_cases import spell
from tests.support.tekken import v15_tokenizer

words = st.integers(0, 999).map(lambda n: f"<{n}>")
texts = st.sampled_from(["", " ", "[INST]", "</s>[TOOL_CALLS]x[ARGS]{}", "\n"]) | words
ids = st.sampled_from(["0", "1", "call_1", "abcdefgh9", ""])
text_parts = st.lists(st.builds(TextPart, texts), max_size=2).map(tuple)
all_parts = st.lists(st.builds(TextPart, texts) | st.builds(ThinkPart, texts, st.booleans()), max_size=3).map(
    tuple
)
arguments = st.sampled_from(["", "{}", '{"a": 1}', "{broken", "null", "[]"])
calls = st.lists(st.builds(ToolCall, ids, st.sampled_from(["f", "g.h"]), arguments), max_size=3).map(tuple)
messages = st.lists(
    st.builds(ChatMessage, st.sampled_from(["system", "user"]), text_parts)
    | st.builds(ChatMessage, st.just("assistant"), all_parts, calls, prefix=st.booleans())
    | st.builds(ChatMessage, st.just("tool"), text_parts, tool_call_id=ids | st.none()),
    min_size=1,
    max_size=8,
)


@settings(max_examples=500, deadline=None)
@given(messages)
def test_any_list_can_be_rendered_whole(listed: list[ChatMessage]) -> None:
    prompt = render(ChatRequest(tuple(listed)), v15_tokenizer()).prompt
    said = Counter(word for m in listed for part in m.parts for word in re.findall(r"<\d+>", part.text))
    spelled = spell(prompt.token_ids, v15_tokenizer())
    assert Counter(re.findall(r"<\d+>", spelled)) == said
    num_calls = sum(len(message.tool_calls) for message in listed)
    control = Counter(token for token in prompt.token_ids if token < 1000)
    assert control[9] == control[32] == control[7] == control[8] == num_calls
    assert control[3] == control[4] >= 1
    assert control[36] == control[37] == 1
    assert control[34] - control[35] == prompt.prefilled_think


@settings(max_examples=200, deadline=None)
@given(messages)
def test_a_repaired_list_needs_no_further_repair(listed: list[ChatMessage]) -> None:
    history = repair_history(listed)
    again = repair_history(history.messages)
    assert set(again.repairs) <= {"merge_turns"}  # users' turns in a row are left to the renderer


talks = st.builds(
    lambda systems, turns, last: [*systems, *turns, last],
    st.lists(st.builds(ChatMessage, st.just("system"), text_parts), max_size=2),
    st.lists(st.builds(ChatMessage, st.sampled_from(["user", "assistant"]), text_parts), max_size=6),
    st.builds(ChatMessage, st.just("user"), text_parts),
)


@settings(max_examples=300, deadline=None)
@given(talks)
def test_what_mistral_common_accepts_is_rendered_as_it_does(listed: list[ChatMessage]) -> None:
    said = [m for m in listed if m.role == "user" or any(part.text for part in m.parts)]
    content = [[{"type": "text", "text": part.text} for part in m.parts] for m in said]
    request = ChatCompletionRequest(
        messages=[{"role": m.role, "content": c} for m, c in zip(said, content, strict=True)],
        reasoning_effort="none",
    )
    tokenizer = v15_tokenizer()
    expected = tokenizer.mistral.encode_chat_completion(request).tokens
    assert list(render(ChatRequest(tuple(listed)), tokenizer).prompt.token_ids) == expected
