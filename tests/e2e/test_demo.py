"""The demo through the door that users have: what the README promises of it, with the official client."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from sparkstral.config import SERVED_MODEL_NAME

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FILLER = (
    "The river rose in spring and the mill stood still.",
    "A clerk counted the letters twice and went home early.",
    "Nobody in the village remembered who had planted the elms.",
    "The ferry left at noon with eleven passengers and a goat.",
    "Rain is likely in the north, while the coast stays dry.",
)


@pytest.fixture(scope="module")
def client(demo_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, question: str, **body: Any) -> Any:
    completion = client.chat.completions.create(
        model=SERVED_MODEL_NAME, messages=[{"role": "user", "content": question}], temperature=0, **body
    )
    return completion.choices[0]


def test_it_says_hello(client: openai.OpenAI) -> None:
    assert ask(client, "Say hello.").message.content == "Hello!"


def test_it_adds(client: openai.OpenAI) -> None:
    assert ask(client, "What is 37 + 45?").message.content == "82"


def test_it_calls_the_tool_that_it_is_given(client: openai.OpenAI) -> None:
    choice = ask(client, "What is the weather in Oslo?", tools=[WEATHER])
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})


def test_it_answers_from_the_result_of_its_call(client: openai.OpenAI) -> None:
    question: Any = {"role": "user", "content": "What is the weather in Oslo?"}
    first = ask(client, question["content"], tools=[WEATHER]).message
    result: Any = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": '{"condition": "rain"}'}
    messages: Any = [question, first.model_dump(exclude_none=True), result]
    answer = client.chat.completions.create(
        model=SERVED_MODEL_NAME, messages=messages, tools=[WEATHER], temperature=0
    )
    assert "rain" in (answer.choices[0].message.content or "")


def test_it_reasons_when_it_is_asked_to(client: openai.OpenAI) -> None:
    plain = ask(client, "What is 12 + 30?").message
    thoughtful = ask(client, "What is 12 + 30?", reasoning_effort="high").message
    assert plain.content == thoughtful.content == "42"
    assert getattr(plain, "reasoning_content", None) is None
    assert thoughtful.reasoning_content


def hidden_key(num_sentences: int) -> str:
    """A pass key somewhere in a text about other things."""
    rng = random.Random(3)
    lines = [rng.choice(FILLER) for _ in range(num_sentences)]
    lines.insert(num_sentences // 2, "The pass key is 48213. Remember it.")
    return " ".join(lines) + "\n\nWhat is the pass key?"


def test_it_finds_a_pass_key_in_4000_tokens(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model=SERVED_MODEL_NAME, messages=[{"role": "user", "content": hidden_key(290)}], temperature=0
    )
    assert completion.usage is not None
    assert 3_500 < completion.usage.prompt_tokens < 5_000
    assert completion.choices[0].message.content == "48213"


def test_a_second_turn_reuses_the_first_one(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": hidden_key(60)}]
    first = client.chat.completions.create(model=SERVED_MODEL_NAME, messages=messages, temperature=0)
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    messages.append({"role": "user", "content": "Tell me the pass key."})
    second = client.chat.completions.create(model=SERVED_MODEL_NAME, messages=messages, temperature=0)
    assert first.choices[0].message.content == second.choices[0].message.content == "48213"
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # The whole first turn, answer included, but for the block that it did not fill.
    cached_tokens = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached_tokens >= first.usage.prompt_tokens - 64


def test_eight_clients_at_once_are_all_right_and_none_mixed_up(client: openai.OpenAI) -> None:
    words = ["anchor", "bread", "castle", "dragon", "engine", "forest", "garden", "hammer"]

    def repeat(word: str) -> str:
        stream = client.chat.completions.create(
            model=SERVED_MODEL_NAME,
            messages=[{"role": "user", "content": f"Repeat exactly: {word} river {len(word) + 40}"}],
            temperature=0,
            stream=True,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(repeat, words))
    assert answers == [f"{word} river {len(word) + 40}" for word in words]
