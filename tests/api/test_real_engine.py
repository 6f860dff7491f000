"""The same door over the real engine, with a tiny random model: what it says has no sense, but form."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from sparkstral.api.app import create_app
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import EngineConfig, ServerConfig
from sparkstral.engine.inproc import InprocEngineClient
from tests.api.conftest import MODEL
from tests.support.generated import each_body
from tests.support.random_schemas import whole_schema
from tests.support.server import served
from tests.support.tekken import VOCAB_SIZE, write_tekken
from tests.support.tiny_checkpoint import TinyModel, write_native

SCHEMA = {
    "type": "object",
    "properties": {"ferry": {"enum": ["Mols", "Stena"]}, "deck": {"type": "boolean"}},
    "required": ["ferry", "deck"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "book", "parameters": SCHEMA, "strict": True}}
BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("model")
    write_native(folder, TinyModel(vocab_size=VOCAB_SIZE))
    write_tekken(folder)
    engine = InprocEngineClient(
        EngineConfig(folder, device="cpu", max_model_len=512, kv_memory_bytes=8 << 20, num_threads=1)
    )
    with served(create_app(engine, ChatTokenizer.load(folder), ServerConfig())) as url:
        while (health := httpx.get(f"{url}/health").json())["phase"] != "ready":
            assert health["phase"] != "dead", health["detail"]
            time.sleep(0.05)
        yield url


@pytest.fixture
def sdk(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def answer(url: str, stream: bool, **body: Any) -> dict[str, Any]:
    """The message and what ended it, as the official client puts it together."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, **body}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if not stream:
            return client.chat.completions.create(**body).choices[0].model_dump(exclude_none=True)
        with client.chat.completions.stream(**body) as events:
            return events.get_final_completion().choices[0].model_dump(exclude_none=True)


def test_it_is_ready_and_says_its_length(sdk: openai.OpenAI) -> None:
    assert sdk.models.retrieve(MODEL).max_model_len == 512  # type: ignore[attr-defined]


@BOTH
def test_a_schema_is_kept_by_a_model_without_sense(url: str, stream: bool) -> None:
    num_whole = 0
    for seed, schema in enumerate([SCHEMA, *map(whole_schema, range(3))]):
        choice = answer(
            url,
            stream,
            temperature=1,
            seed=seed,
            response_format={"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}},
        )
        if choice["finish_reason"] == "stop":  # else the context's end cut it
            num_whole += 1
            jsonschema.validate(json.loads(choice["message"]["content"]), schema, jsonschema.Draft202012Validator)
    assert num_whole >= 2


def test_no_generated_request_makes_a_server_error(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    whole = document["components"]["schemas"]["CompletionRequest"]
    few = {key: value for key, value in whole["properties"].items() if key not in ("n", "best_of")}
    document["components"]["schemas"]["CompletionRequest"] = {**whole, "properties": few}
    statuses: Counter[int] = Counter()

    def send(body: Any) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        statuses[client.post("/v1/completions", content=content).status_code] += 1

    with httpx.Client(base_url=url, timeout=60) as client:
        num_sent = each_body(document, "/v1/completions", {"prompt": [1065], "max_tokens": 1}, 1, send)
    assert statuses.total() == num_sent > 50
    assert max(statuses) < 500, statuses
    assert min(statuses[200], statuses[400]) > 10, statuses


@BOTH
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "book"}}])
def test_a_call_that_is_required_is_made(url: str, stream: bool, choice: Any) -> None:
    result = answer(url, stream, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    assert result["finish_reason"] == "tool_calls"
    (call,) = result["message"]["tool_calls"]
    assert call["function"]["name"] == "book"
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


def test_streamed_and_whole_alone_and_among_others_an_answer_is_the_same(url: str) -> None:
    def ask(client: openai.AsyncOpenAI, town: str, seed: int) -> Any:
        return client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"When does the ferry to {town} leave? " * 4}],
            max_tokens=24,
            seed=seed,
            temperature=1,
        )

    async def ask_all(together: bool) -> list[str]:
        towns = ["Aarhus", "Bergen", "Cuxhaven", "Drammen", "Esbjerg", "Fredericia", "Gdansk", "Husum"]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            asked = [ask(client, town, seed) for seed, town in enumerate(towns)]
            answers = await asyncio.gather(*asked) if together else [await one for one in asked]
        return [answer.choices[0].message.content for answer in answers]

    alone = asyncio.run(ask_all(together=False))
    assert asyncio.run(ask_all(together=True)) == alone
    assert len(set(alone)) == 8


def test_a_second_turn_reuses_the_first(sdk: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Tell me of the tides at Husum. " * 30}]
    usages = [
        sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=4).usage for _ in range(2)
    ]
    assert usages[0].prompt_tokens_details.cached_tokens == 0  # type: ignore[union-attr]
    assert usages[1].prompt_tokens_details.cached_tokens > 0  # type: ignore[union-attr]


def test_a_client_that_leaves_does_not_hold_the_engine(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "Go on."}], "stream": True, "temperature": 1}
    for _ in range(20):
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as stream:
            assert stream.status_code == 200
    assert answer(url, False, max_tokens=2)["finish_reason"] in ("stop", "length")


def test_a_prompt_that_is_too_long_is_refused_and_the_longest_is_not(sdk: openai.OpenAI) -> None:
    def ask(num_words: int, max_tokens: int = 100) -> Any:
        messages: Any = [{"role": "user", "content": "tide " * num_words}]
        return sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=max_tokens)

    base = ask(1, max_tokens=1).usage.prompt_tokens - 1
    longest = ask(511 - base)
    assert longest.usage.prompt_tokens == 511
    assert longest.usage.completion_tokens == 1
    with pytest.raises(openai.BadRequestError, match=r"512 tokens") as caught:
        ask(512 - base)
    assert caught.value.code == "context_length_exceeded"


def test_a_bias_a_penalty_and_a_least_length_are_obeyed(url: str, sdk: openai.OpenAI) -> None:
    body: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Go on."}], "temperature": 0, "max_tokens": 8}

    def tokens(**more: Any) -> list[list[int]]:
        choice = sdk.chat.completions.create(**body, logprobs=True, **more).choices[0]
        assert choice.logprobs is not None
        return [item.bytes or [] for item in choice.logprobs.content or ()]

    assert tokens(logit_bias={"1065": 100}, extra_body={"ignore_eos": True}) == [[65]] * 8
    mixed = tokens(logit_bias={"1065": 50, "1066": 49}, frequency_penalty=2, extra_body={"ignore_eos": True})
    assert {tuple(token) for token in mixed} == {(65,), (66,)}
    once = sdk.chat.completions.create(**body, logit_bias={"2": 100})
    assert once.usage is not None
    assert once.usage.completion_tokens == 1
    longer = sdk.chat.completions.create(**body, logit_bias={"2": 100}, extra_body={"min_tokens": 5})
    assert longer.usage is not None
    assert longer.usage.completion_tokens == 6


def test_log_probabilities_are_those_of_the_model(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Go on."}], max_tokens=5, temperature=0, logprobs=True,
        top_logprobs=3, extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert answer.choices[0].logprobs is not None
    for item in answer.choices[0].logprobs.content or ():
        values = [top.logprob for top in item.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert item.logprob == values[0] < 0


def test_the_prompts_log_probabilities_are_those_of_its_tokens_one_by_one(sdk: openai.OpenAI) -> None:
    """An echo tells of each token what a request that ends before it tells."""
    prompt = [1, *range(1065, 1085)]

    def explained(token_ids: list[int], **more: Any) -> Any:
        answer = sdk.completions.create(model=MODEL, prompt=token_ids, temperature=0, logprobs=5, **more)
        assert answer.choices[0].logprobs is not None
        return answer.choices[0].logprobs

    told = explained(prompt, echo=True, max_tokens=1)
    assert told.token_logprobs[0] is None
    assert len(told.tokens) == len(prompt) + 1
    for i in (1, 7, 20):
        top = explained(prompt[:i], max_tokens=1).top_logprobs[0]
        likeliest = max(top.values())
        assert max(told.top_logprobs[i].values()) == pytest.approx(likeliest, abs=1e-4)
    again = explained(prompt, echo=True, max_tokens=1)
    assert again.token_logprobs[1:] == pytest.approx(told.token_logprobs[1:], abs=1e-5)
