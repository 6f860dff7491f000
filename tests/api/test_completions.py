"""The older completions protocol and the token endpoints, over a scripted engine."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.types import Failure
from tests.api.conftest import MODEL, Doors
from tests.support.chat_cases import load_cases
from tests.support.fake_engine import FakeEngine

BOTH = pytest.mark.parametrize("stream", [False, True])
RENDERED = [
    case for case in load_cases("message_lists")
    if case["api"] == "chat" and "expect_pieces" in case and "expect_ids" in case
]  # fmt: skip


def post(doors: Doors, path: str, body: dict[str, Any], engine: FakeEngine | None = None) -> httpx.Response:
    async def send() -> httpx.Response:
        async with doors.asgi(engine or doors.engine("Hi", "</s>")) as client:
            return await client.post(path, json=body)

    return asyncio.run(send())


def complete(sdk: openai.OpenAI, stream: bool, **body: Any) -> list[dict[str, Any]]:
    """The choices, put together from the pieces of a stream."""
    if not stream:
        return [choice.model_dump() for choice in sdk.completions.create(model=MODEL, **body).choices]
    choices: dict[int, dict[str, Any]] = {}
    for chunk in sdk.completions.create(model=MODEL, stream=True, **body):
        for piece in chunk.choices:
            choice = choices.setdefault(piece.index, {"index": piece.index, "text": "", "logprobs": None})
            choice["text"] += piece.text
            choice["finish_reason"] = piece.finish_reason
            if piece.logprobs:
                told = choice["logprobs"] or {name: [] for name in piece.logprobs.model_dump()}
                choice["logprobs"] = {name: told[name] + list(v) for name, v in piece.logprobs.model_dump().items()}
    return [choices[index] for index in sorted(choices)]


@BOTH
def test_a_text_goes_on(doors: Doors, tokenizer: ChatTokenizer, stream: bool) -> None:
    engine = doors.engine(" upon a [THINK] time", "[THINK]", "né", "</s>")
    (choice,) = complete(doors.sdk(engine), stream, prompt="Once [INST]")
    assert choice == {"index": 0, "text": " upon a [THINK] timené", "logprobs": None, "finish_reason": "stop"}
    (request,) = engine.requests
    assert request.prompt_token_ids == (1, *tokenizer.encode("Once [INST]"))
    assert (request.sampling.max_tokens, request.sampling.temperature) == (16, 1.0)
    assert request.sampling.banned_token_ids == ()
    complete(doors.sdk(engine), stream, prompt=[3, 1065, 4])
    assert engine.requests[1].prompt_token_ids == (3, 1065, 4)
    complete(doors.sdk(engine), stream, prompt="Once", extra_body={"add_special_tokens": False})
    assert engine.requests[2].prompt_token_ids == tuple(tokenizer.encode("Once"))


@BOTH
@pytest.mark.parametrize("prompt", [["One", "Two", "Three"], [[1065], [1066, 1067], [1068]]])
def test_several_prompts_and_several_answers_to_each(doors: Doors, stream: bool, prompt: Any) -> None:
    engine = doors.engine("a b c", "</s>")
    choices = complete(doors.sdk(engine), stream, prompt=prompt, n=2, stop="c", seed=1)
    assert [(choice["index"], choice["text"]) for choice in choices] == [(i, "a b ") for i in range(6)]
    assert sorted(request.sampling.seed or 0 for request in engine.requests) == [1, 1, 1, 2, 2, 2]
    usage = doors.sdk(engine).completions.create(model=MODEL, prompt=prompt, n=2).usage
    assert usage is not None
    num_prompt_tokens = sum(len(r.prompt_token_ids) for r in engine.requests[-6:]) // 2
    assert (usage.prompt_tokens, usage.completion_tokens) == (num_prompt_tokens, 6 * 4)


@BOTH
def test_an_echo_has_the_prompts_log_probabilities(doors: Doors, stream: bool) -> None:
    engine = doors.engine("B", "</s>")
    (choice,) = complete(doors.sdk(engine), stream, prompt="AB A", echo=True, logprobs=1)
    assert choice["text"] == "AB AB"
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == "<s>AB AB"
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:] == [-0.5] * (len(told["tokens"]) - 2) + [-0.25]
    assert all(len(top) >= 1 for top in told["top_logprobs"][1:])
    (request,) = engine.requests
    assert request.cache_salt == request.request_id
    (prompt_only,) = complete(doors.sdk(engine), stream, prompt=[1065, 1066], echo=True, logprobs=0, max_tokens=0)
    assert prompt_only["text"] == "AB"
    assert prompt_only["logprobs"]["tokens"] == ["A", "B"]
    assert prompt_only["finish_reason"] == "length"


@BOTH
def test_the_text_at_a_tokens_offset_begins_with_it(doors: Doors, stream: bool) -> None:
    engine = doors.engine("🎉 ö!", "</s>")
    (choice,) = complete(doors.sdk(engine), stream, prompt="Hello größe 🌍 x", echo=True, logprobs=1)
    text, told = choice["text"], choice["logprobs"]
    assert text == "Hello größe 🌍 x🎉 ö!"
    assert told["tokens"].count("\ufffd") > 4
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        if "\ufffd" not in token and token != "<s>":
            assert text[offset:].startswith(token), (token, offset)
    assert told["text_offset"][0] == told["text_offset"][1] == 0
    broken = [offset for token, offset in zip(told["tokens"], told["text_offset"], strict=True) if token == "\ufffd"]
    assert {text[offset] for offset in broken} <= set("🌍🎉öß")


@BOTH
def test_a_failure_is_told(doors: Doors, stream: bool) -> None:
    engine = doors.engine("one two three", "</s>")
    engine.fail_after = (2, Failure("engine_dead", "The engine process ended."))
    with pytest.raises(openai.APIError, match="The engine process ended"):
        complete(doors.sdk(engine), stream, prompt="x")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "x"]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [999999]}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": ["x"] * 5, "n": 30}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": "tide " * 5000}, "prompt"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_wrong_field_is_named(doors: Doors, change: dict[str, Any], param: str) -> None:
    answer = post(doors, "/v1/completions", {"prompt": "x", **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_tokens_there_and_back(doors: Doors, tokenizer: ChatTokenizer) -> None:
    text = "né [INST] 日本"
    told = post(doors, "/tokenize", {"model": MODEL, "prompt": text, "return_token_strs": True}).json()
    assert told["tokens"] == [1, *tokenizer.encode(text)]
    assert (told["count"], told["max_model_len"], told["token_strs"][0]) == (len(told["tokens"]), 4096, "<s>")
    plain = post(doors, "/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    assert plain == told["tokens"][1:]
    assert post(doors, "/detokenize", {"tokens": plain}).json() == {"prompt": text}
    assert post(doors, "/detokenize", {"tokens": [3, *plain]}).json() == {"prompt": f"[INST]{text}"}
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", "messages": []}),
        ("/detokenize", {"tokens": [10**6]}),
    ):
        assert post(doors, path, body).status_code == 400


@pytest.mark.parametrize("case", RENDERED, ids=lambda case: case["id"])
def test_what_the_model_sees(doors: Doors, case: dict[str, Any]) -> None:
    rendered = post(doors, "/render", case["request"]).json()
    assert rendered["tokens"] == case["expect_ids"]
    assert rendered["prompt"] == "".join(case["expect_pieces"])
    fields = {
        name: case["request"][name] for name in ("messages", "tools", "reasoning_effort") if name in case["request"]
    }
    assert post(doors, "/tokenize", fields).json()["tokens"] == case["expect_ids"]


def test_render_tells_what_was_made_of_the_request(doors: Doors) -> None:
    messages = [{"role": "user", "content": text} for text in ("Hi", "there")]
    rendered = post(doors, "/render", {"messages": messages, "reasoning_effort": "max", "user": "u"}).json()
    assert (rendered["reasoning_effort"], rendered["repairs"], rendered["ignored"]) == (
        "high",
        ["merge_turns"],
        ["user"],
    )
