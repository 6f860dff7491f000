"""Images in every protocol, through the official clients; what cannot be read is refused by its place, alone."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import anthropic
import httpx
import pytest
from PIL import Image

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.config import ServerConfig
from sparkstral.types import GenerationRequest
from tests.api.conftest import MODEL, Doors
from tests.support.fake_engine import FakeEngine


def base64_of(width: int, height: int, kind: str = "PNG") -> str:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


RED = base64_of(28, 56)
WIDE = base64_of(56, 28, "JPEG")
URL = f"data:image/png;base64,{RED}"
OF_RED, OF_WIDE = "[IMG][IMG_BREAK][IMG][IMG_END]", "[IMG][IMG][IMG_END]"


def seen(engine: FakeEngine, tokenizer: ChatTokenizer) -> str:
    """The prompt of the last request from [INST] on; every image is at the place that it says."""
    request: GenerationRequest = engine.requests[-1]
    for image in request.images:
        assert request.prompt_token_ids[image.offset] == 10
        assert request.prompt_token_ids[image.end - 1] == 13
        assert len(image.pixels) == 4 * 3 * 28 * 28 * image.num_embeddings
    assert request.prompt_token_ids.count(13) == len(request.images)
    return tokenizer.spell(request.prompt_token_ids).partition("[/MODEL_SETTINGS]")[2]


def test_chat_completions(doors: Doors, tokenizer: ChatTokenizer) -> None:
    engine = doors.engine("Teal.", "</s>")
    content: Any = [
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": f"data:;base64,{WIDE}"},
        {"type": "text", "text": "And this?"},
    ]
    answer = doors.sdk(engine).chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": content}]
    )
    assert answer.parse().choices[0].message.content == "Teal."
    assert answer.headers["x-sparkstral-ignored"] == "messages[].content[].image_url.detail"
    assert seen(engine, tokenizer) == f"[INST]{OF_RED}What is this?{OF_WIDE}And this?[/INST]"


def test_responses(doors: Doors, tokenizer: ChatTokenizer) -> None:
    engine = doors.engine("Teal.", "</s>")
    sdk = doors.sdk(engine)
    image: Any = {"type": "input_image", "image_url": URL, "detail": "auto"}
    text: Any = {"type": "input_text", "text": "What is this?"}
    first = sdk.responses.create(model=MODEL, input=[{"role": "user", "content": [image, text]}])
    assert first.output_text == "Teal."
    sdk.responses.create(model=MODEL, input="Sure?", previous_response_id=first.id)
    assert seen(engine, tokenizer) == f"[INST]{OF_RED}What is this?[/INST]Teal.</s>[INST]Sure?[/INST]"


def test_anthropic_messages(doors: Doors, tokenizer: ChatTokenizer) -> None:
    engine = doors.engine("Teal.", "</s>")
    source: Any = {"type": "base64", "media_type": "image/png", "data": RED}
    content: Any = [
        {"type": "text", "text": "Look."},
        {"type": "text", "text": "What is this?"},
        {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Well?"},
    ]
    with anthropic.Anthropic(base_url=doors.url(engine), api_key="none", max_retries=0) as sdk:
        answer = sdk.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": content}])
        counted = sdk.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": content}])
    assert answer.content[0].type == "text"
    assert seen(engine, tokenizer) == f"[INST]Look.\n\nWhat is this?{OF_RED}Well?[/INST]"
    assert counted.input_tokens == answer.usage.input_tokens == len(engine.requests[-1].prompt_token_ids)


RESULTS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Look."},
                {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "see"}}]},
                {
                    "role": "tool",
                    "tool_call_id": "a",
                    "content": [{"type": "text", "text": "seen"}, {"type": "image_url", "image_url": {"url": URL}}],
                },
            ]
        },
    ),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": "Look."},
                {"type": "function_call", "call_id": "a", "name": "see", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "a",
                    "output": [{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": URL}],
                },
            ]
        },
    ),
    (
        "/v1/messages",
        {
            "max_tokens": 5,
            "messages": [
                {"role": "user", "content": "Look."},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "see", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "a",
                            "content": [
                                {"type": "text", "text": "seen"},
                                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": RED}},
                            ],
                        }
                    ],
                },
            ],
        },
    ),
]


def post(doors: Doors, engine: FakeEngine, path: str, body: dict[str, Any], **config: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with doors.asgi(engine, ServerConfig(**config)) as client:
            return await client.post(path, json=body)

    return asyncio.run(send())


@pytest.mark.parametrize(("path", "body"), RESULTS, ids=[path for path, _ in RESULTS])
def test_a_tools_result_may_hold_images(
    doors: Doors, tokenizer: ChatTokenizer, path: str, body: dict[str, Any]
) -> None:
    engine = doors.engine("Teal.", "</s>")
    assert post(doors, engine, path, body).status_code == 200
    assert seen(engine, tokenizer).endswith(f"[TOOL_RESULTS]seen{OF_RED}[/TOOL_RESULTS]")


def chat(*urls: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": url} for url in urls]
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, *parts]}]}


BROKEN = base64.b64encode(base64.b64decode(RED)[:-30]).decode()
SECOND = "messages[0].content[2]"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"data:image/png;base64,{BROKEN}", "damaged"),
        ("data:image/png;base64,aGVsbG8=", "no image that this server reads"),
        ("data:image/png;base64,%%%", "no base64"),
        ("data:image/png;base64,", "no image that this server reads"),
        ("data:image/png,raw", "not in base64"),
        ("file:///etc/passwd", "send it as a data URL"),
        ("ftp://example.com/a.png", "send it as a data URL"),
        ("a.png", "send it as a data URL"),
        ("", "send it as a data URL"),
        ("https://example.com/a.png", "this server fetches none (--allow-image-host"),
    ],
    ids=lambda value: value[:30],
)
def test_a_bad_image_is_named_by_its_place_and_nothing_else_fails(doors: Doors, url: str, said: str) -> None:
    engine = doors.engine("Teal.", "</s>")
    answer = post(doors, engine, "/v1/chat/completions", chat(URL, url))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == SECOND
    assert said in error["message"]
    assert engine.requests == []
    assert post(doors, engine, "/v1/chat/completions", chat(URL)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
            "input[0].content[0]",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 5,
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]}
                ],
            },
            "messages[0].content[0]",
        ),
    ],
)
def test_file_ids_are_refused(doors: Doors, path: str, body: dict[str, Any], place: str) -> None:
    answer = post(doors, doors.engine("Hi", "</s>"), path, body)
    assert answer.status_code == 400
    assert f"`{place}` names an image by a file id; this server keeps no files" in answer.json()["error"]["message"]


def test_a_system_message_holds_no_image(doors: Doors) -> None:
    body = chat(URL)
    body["messages"][0]["role"] = "system"
    answer = post(doors, doors.engine("Hi", "</s>"), "/v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[1]"


def test_more_images_than_allowed(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    assert post(doors, engine, "/v1/chat/completions", chat(URL, URL), max_images=2).status_code == 200
    answer = post(doors, engine, "/v1/chat/completions", chat(URL, URL, URL), max_images=2)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[3]"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/render", "/tokenize"])
def test_a_model_without_eyes_says_so(doors: Doors, path: str) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.why_blind = "this server was started with --no-vision"
    answer = post(doors, engine, path, chat(URL))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "`messages[0].content[1]` is an image, and this server was started with --no-vision. Send text alone."
    )


def test_an_image_that_leaves_no_room_is_a_prompt_that_is_too_long(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.max_model_len = 300
    big = f"data:;base64,{base64_of(616, 616)}"
    answer = post(doors, engine, "/v1/chat/completions", chat(big))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
