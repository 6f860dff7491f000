from __future__ import annotations

from pathlib import Path

import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from tools.demo.make_tokenizer import DEMO_NUM_RANKS, RELEASED_NUM_RANKS, SPECIAL_TOKENS, write_tekken

SHIPPED = Path(__file__).parents[4] / "src/sparkstral/demo/checkpoint/tekken.json"


def chat_ids(tokenizer: MistralTokenizer, effort: str | None = None, system: str | None = None) -> list[int]:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": "hi"})
    request = ChatCompletionRequest(messages=messages, reasoning_effort=effort)
    return list(tokenizer.encode_chat_completion(request).tokens)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> MistralTokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tekken.json"
    write_tekken(path, RELEASED_NUM_RANKS)
    return MistralTokenizer.from_file(str(path))


def test_shipped_file_is_what_the_program_writes(tmp_path: Path) -> None:
    write_tekken(tmp_path / "tekken.json", DEMO_NUM_RANKS)
    assert (tmp_path / "tekken.json").read_bytes() == SHIPPED.read_bytes()


def test_demo_has_8192_ids_and_the_control_ids_of_the_released_model() -> None:
    tekken = Tekkenizer.from_file(SHIPPED)
    assert tekken.n_words == 8192
    assert tekken.version.value == "v15"
    for token_id, name in SPECIAL_TOKENS.items():
        assert tekken.get_special_token(name) == token_id
    assert tekken.get_special_token("<SPECIAL_999>") == 999


def test_demo_prompt_has_the_released_structure() -> None:
    token_ids = chat_ids(MistralTokenizer.from_file(str(SHIPPED)), system="S")
    assert [token_id for token_id in token_ids if token_id < 1000] == [1, 17, 18, 36, 37, 3, 4]
    assert token_ids[:4] == [1, 17, 1083, 18]


def test_demo_and_released_vocabulary_agree_on_every_demo_id(released: MistralTokenizer) -> None:
    demo, whole = Tekkenizer.from_file(SHIPPED), released.instruct_tokenizer.tokenizer
    assert all(demo.id_to_byte_piece(i) == whole.id_to_byte_piece(i) for i in range(1000, 8192))


def test_full_vocabulary_reproduces_the_released_prompts(released: MistralTokenizer) -> None:
    settings = [36, 19227, 80277, 1302, 13196, 1609, 1449, 2811, 1429, 17670, 46005, 37]
    assert chat_ids(released) == [1, *settings, 3, 8101, 4]
    assert chat_ids(released, effort="high") == [
        1,
        *[24871 if i == 17670 else i for i in settings],
        3,
        8101,
        4,
    ]
    assert chat_ids(released, system="S") == [1, 17, 1083, 18, *settings, 3, 8101, 4]


@pytest.mark.parametrize(
    ("text", "token_ids"),
    [
        ("Hello, world!", [22177, 1044, 4304, 1033]),
        (
            "The quick brown fox jumps over the lazy dog.",
            [1784, 7586, 22980, 94137, 72993, 2136, 1278, 42757, 10575, 1046],
        ),
        ("función común días 日本語 🎉", [12127, 1963, 35239, 20608, 30367, 15199, 119685, 1142, 1137]),
        ("[INST]", [1091, 3174, 3074, 1093]),
    ],
)
def test_full_vocabulary_reproduces_the_released_ids(
    released: MistralTokenizer, text: str, token_ids: list[int]
) -> None:
    assert released.instruct_tokenizer.tokenizer.encode(text, bos=False, eos=False) == token_ids
