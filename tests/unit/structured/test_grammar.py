"""Compiled grammars: masks by bytes and special ids, the end of the turn, faults that fail one request
alone."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from sparkstral.errors import CheckpointError
from sparkstral.structured.matcher import CompiledGrammar, GrammarError
from sparkstral.structured.vocabulary import Vocabulary, build_grammar_tokenizer, read_vocabulary

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
EOS, CALL, ARGS = 2, 9, 32
MERGES = (b"na", b"me", b"name", b'{"', b'":', b' "')
VOCABULARY = Vocabulary(tuple(bytes([i]) for i in range(256)) + MERGES, num_special_tokens=40, pattern=PATTERN)
VOCAB_SIZE = 320  # more logits than tokens
TOKENIZER = build_grammar_tokenizer(VOCABULARY, VOCAB_SIZE)


def byte(char: str) -> int:
    return 40 + ord(char)


def merge(token: bytes) -> int:
    return 40 + 256 + MERGES.index(token)


def allowed(grammar: str, *output_token_ids: int) -> set[int]:
    mask = CompiledGrammar(TOKENIZER, grammar).matcher(output_token_ids).bitmask()
    assert mask.shape == (VOCAB_SIZE // 32,)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def test_a_special_token_is_addressed_by_its_id():
    grammar = 'start: <[9]> "n" <[32]>'
    assert allowed(grammar) == {CALL}
    assert allowed(grammar, CALL) == {byte("n")}
    assert allowed(grammar, CALL, byte("n")) == {ARGS}


def test_the_turn_may_end_exactly_where_the_grammar_is_satisfied():
    grammar = 'start: "a" | "a" "b"+'
    assert EOS not in allowed(grammar)
    assert allowed(grammar, byte("a")) == {byte("b"), EOS}
    assert allowed('start: "a"', byte("a")) == {EOS}


def test_text_never_allows_a_special_token():
    assert allowed(r"start: /(.|\n)+/").isdisjoint(range(40))


def test_forced_text_is_spelled_with_the_merges():
    schema = '{"type": "object", "properties": {"name": {"enum": ["na"]}}, "required": ["name"]}'
    open_brace = allowed(f"start: %json {schema}")
    assert merge(b'{"') in open_brace
    assert allowed(f"start: %json {schema}", merge(b'{"')) == {merge(b"name")}


def test_tokens_past_the_vocabulary_are_never_allowed():
    assert max(allowed(r"start: /(.|\n)+/")) < len(VOCABULARY)


def test_letters_outside_ascii_are_bytes():
    grammar = 'start: "é" "x"'
    first, second = (40 + b for b in "é".encode())
    assert allowed(grammar) == {first}
    assert allowed(grammar, first) == {second}
    assert allowed(grammar, first, second) == {byte("x")}


def test_two_requests_share_a_grammar_and_not_its_state():
    grammar = CompiledGrammar(TOKENIZER, 'start: "a" "b" "c"')
    one, other = grammar.matcher(()), grammar.matcher((byte("a"),))
    one.advance(byte("a"))
    one.advance(byte("b"))
    other.advance(byte("b"))
    np.testing.assert_array_equal(one.bitmask(), other.bitmask())
    np.testing.assert_array_equal(grammar.matcher(()).bitmask(), grammar.matcher(()).bitmask())


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: nowhere", "nowhere"),
        ('start: "a', ""),
        ('start: %json {"enum": []}', "nsatisfiable"),
        ("start: %json false", "nsatisfiable"),
        ("start: <[99999]>", "99999"),
        ("start: a\na: a a", ""),
        ('start: %json {"type": "object", "patternProperties": 5}', ""),
    ],
)
def test_a_wrong_or_impossible_grammar_says_why(grammar: str, reason: str):
    with pytest.raises(GrammarError) as raised:
        CompiledGrammar(TOKENIZER, grammar)
    assert reason in str(raised.value)
    assert str(raised.value).strip()
    assert "<state>" not in str(raised.value)


def test_a_grammar_that_grows_too_complex_fails_when_it_does():
    grammar = CompiledGrammar(TOKENIZER, "start: /((((a{1,100}){1,100}){1,100}){1,100})/")
    with pytest.raises(GrammarError):
        grammar.matcher([byte("a")] * 200)


def test_an_output_that_the_grammar_forbids_is_an_error():
    matcher = CompiledGrammar(TOKENIZER, 'start: "a"').matcher(())
    with pytest.raises(GrammarError):
        matcher.advance(byte("b"))


def write_tekken(path: Path, num_ranks: int = 256, promised: int = 256 + 40) -> Path:
    vocab = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode()} for i in range(num_ranks)]
    config = {"pattern": PATTERN, "default_vocab_size": promised, "default_num_special_tokens": 40}
    path.write_text(json.dumps({"config": config, "vocab": vocab}))
    return path


def test_the_vocabulary_is_read_from_tekken_json(tmp_path: Path):
    vocabulary = read_vocabulary(write_tekken(tmp_path / "tekken.json"))
    assert len(vocabulary) == 296
    assert vocabulary.token_bytes[65] == b"A"
    assert vocabulary.pattern == PATTERN


def test_entries_past_the_promised_size_are_not_tokens(tmp_path: Path):
    assert len(read_vocabulary(write_tekken(tmp_path / "tekken.json", promised=140))) == 140


def test_a_broken_tekken_json_is_named(tmp_path: Path):
    path = tmp_path / "tekken.json"
    with pytest.raises(CheckpointError, match=r"tekken\.json"):
        read_vocabulary(path)
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"tekken\.json"):
        read_vocabulary(path)
    with pytest.raises(CheckpointError, match="256"):
        read_vocabulary(write_tekken(path, promised=1_000))


def test_a_vocabulary_larger_than_the_model_is_refused():
    with pytest.raises(CheckpointError, match="302"):
        build_grammar_tokenizer(VOCABULARY, 301)
