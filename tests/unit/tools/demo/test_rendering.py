from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from sparkstral import demo
from tools.demo.evaluate import answer_message
from tools.demo.rendering import EOS, Renderer

TEKKEN = Path(__file__).parents[4] / "src/sparkstral/demo/checkpoint/tekken.json"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(TEKKEN)


def conversations(count: int) -> list[demo.Conversation]:
    rng = random.Random(5)
    return [demo.sample(rng, skill.name, demo.Split.TRAIN) for skill in demo.SKILLS for _ in range(count)]


def spoken(message: dict[str, Any]) -> str:
    """An assistant turn as the prompt grammar spells it."""
    thought = f"[THINK]{message['reasoning']}[/THINK]" if message.get("reasoning") else ""
    calls = "".join(
        f"[TOOL_CALLS]{call['function']['name']}[ARGS]{call['function']['arguments']}"
        for call in message.get("tool_calls") or ()
    )
    return f"{thought}{message.get('content') or ''}{calls}</s>"


def test_spans_are_exactly_the_assistant_turns_that_are_learnt(renderer: Renderer) -> None:
    num_foreign = 0
    for conversation in conversations(8):
        num_foreign += sum(not message.get("is_learnt", True) for message in conversation.messages)
        rendered = renderer.render(conversation)
        said = [renderer.text(rendered.token_ids[begin:end]) for begin, end in rendered.spans]
        assert said == [
            spoken(message)
            for message in conversation.messages
            if message["role"] == "assistant" and message.get("is_learnt", True)
        ]
    assert num_foreign


def test_a_prompt_is_what_a_server_renders(renderer: Renderer) -> None:
    """The ids before the last span are mistral-common's serving prompt of the messages before that turn."""
    serving = MistralTokenizer.from_file(str(TEKKEN))
    for conversation in conversations(2):
        if any(message.get("reasoning") or message.get("tool_calls") for message in conversation.messages):
            continue  # these need the native message form, which is the renderer's own
        request = ChatCompletionRequest(
            messages=[
                {key: value for key, value in message.items() if key != "is_learnt"}
                for message in conversation.messages[:-1]
            ],
            tools=list(conversation.tools) or None,
            reasoning_effort=conversation.reasoning_effort,
        )
        rendered = renderer.render(conversation)
        assert rendered.token_ids[: rendered.spans[-1][0]] == serving.encode_chat_completion(request).tokens


def test_a_right_answer_is_parsed_and_judged_right(renderer: Renderer) -> None:
    for skill in demo.SKILLS:
        for item in demo.eval_items(skill.name, 3, 11):
            rendered = renderer.render(item.conversation)
            for (begin, end), turn in zip(rendered.spans, item.turns, strict=True):
                right = rendered.token_ids[begin:end]
                assert item.wrong(turn, answer_message(renderer, right)) is None
                assert item.wrong(turn, answer_message(renderer, [1072, *right, EOS])) is not None
