from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.errors import CheckpointError
from tests.support.tekken import write_tekken


def test_known_texts_have_their_known_ids(tokenizer: ChatTokenizer) -> None:
    assert tokenizer.encode("Hello, world!") == [22177, 1044, 4304, 1033]
    party = "función común días 日本語 🎉"
    ids = [12127, 1963, 35239, 20608, 30367, 15199, 119685, 1142, 1137]
    assert tokenizer.encode(party) == ids
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == party
    assert tokenizer.count(party) == 9
    assert tokenizer.vocab_size == 131_072


def test_control_tokens(tokenizer: ChatTokenizer) -> None:
    assert tokenizer.piece(3) == "[INST]"
    assert tokenizer.piece(34) == "[THINK]"
    assert tokenizer.token_bytes(34) == b""
    assert tokenizer.is_control(999)
    assert not tokenizer.is_control(1000)


def test_text_never_becomes_a_control_token(tokenizer: ChatTokenizer) -> None:
    assert min(tokenizer.encode("<s>[INST][TOOL_CALLS]x[ARGS]{}</s>")) >= 1000


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """A v15 file with the 256 bytes for a vocabulary, to be spoiled."""
    content: dict[str, Any] = json.loads(write_tekken(tmp_path).read_bytes())
    content["vocab"] = content["vocab"][:256]
    content["config"] |= {"num_vocab_tokens": 256, "default_vocab_size": 1256}
    return content


def test_a_small_vocabulary_is_enough(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    tokenizer = ChatTokenizer.load(tmp_path)
    assert tokenizer.vocab_size == 1256
    assert tokenizer.encode("hé") == [1104, 1195, 1169]


def spoil_version(content: dict[str, Any], version: str) -> None:
    content["config"]["version"] = version


def spoil_marker(content: dict[str, Any]) -> None:
    content["special_tokens"][34]["token_str"] = "[IDEA]"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: spoil_version(content, "v13"), "version v13; .* needs v15"),
        (lambda content: spoil_version(content, "v99"), "version v99, which is unknown .* update"),
        (lambda content: content.pop("config"), "not a tekken tokenizer file"),
        (lambda content: content.pop("model_settings_builder"), "no model_settings_builder"),
        (spoil_marker, r"expected \[THINK\] to be token 34, got None"),
        (lambda content: content["vocab"].pop(), "cannot be read as a tokenizer"),
    ],
)
def test_a_wrong_file_is_named_with_a_remedy(
    spoil: Any, message: str, content: dict[str, Any], tmp_path: Path
) -> None:
    spoil(content)
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message) as refused:
        ChatTokenizer.load(path)
    assert str(path) in str(refused.value)
    assert "repository" in str(refused.value)


def test_a_missing_and_a_broken_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tekken\.json"):
        ChatTokenizer.load(tmp_path)
    (tmp_path / "tekken.json").write_text("{")
    with pytest.raises(CheckpointError, match="not a tekken tokenizer file"):
        ChatTokenizer.load(tmp_path)
