"""Whatever the schema, what a model without any sense writes under its grammar at temperature 1 is valid."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import torch

from sparkstral.chat.grammar import grammar_for
from sparkstral.sampling.sampler import SamplingRow, sample
from sparkstral.structured.check import GrammarCheck
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.structured.vocabulary import Vocabulary, build_grammar_tokenizer, read_vocabulary
from sparkstral.types import ChatMessage, ChatRequest, ResponseFormat, SamplingParams, TextPart
from tests.support.random_schemas import whole_schema
from tests.support.tekken import write_tekken

EOS = 2
PIECES = (*(bytes([i]) for i in range(256)), b'":', b'",', b'"}')  # single bytes, and tokens that cross JSON's borders
SMALL = Vocabulary(PIECES, 40, r"\s+|\S+")
NUM_SCHEMAS = 500
NUM_WITH_REAL_VOCABULARY = 25


@cache
def tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    return build_grammar_tokenizer(vocabulary, len(vocabulary))


def written(schema: dict[str, Any], seed: int, vocabulary: Vocabulary) -> str:
    """An answer whose every token is drawn at temperature 1 from logits that know nothing, but like to end things."""
    request = ChatRequest(
        (ChatMessage("user", (TextPart("x"),)),), response_format=ResponseFormat("json_schema", schema)
    )
    grammar = grammar_for(request, GrammarCheck())
    assert grammar is not None
    matcher = CompiledGrammar(tokenizer(vocabulary), grammar.lark).matcher(())
    params = SamplingParams(max_tokens=2000, temperature=1.0, stop_token_ids=(EOS,))
    noise = torch.Generator().manual_seed(seed)
    first = vocabulary.num_special_tokens
    ends = torch.zeros(len(vocabulary))
    ends[[EOS, *(first + vocabulary.token_bytes.index(c.encode()) for c in '"]}')]] = 5
    answer = b""
    for position in range(params.max_tokens):
        logits = torch.randn(1, len(vocabulary), generator=noise) + ends
        (token_id,) = sample(logits, [SamplingRow(params, seed, position, matcher.bitmask())])
        assert isinstance(token_id, int), token_id
        if token_id == EOS:
            return answer.decode()
        matcher.advance(token_id)
        answer += vocabulary.token_bytes[token_id - first]
    raise AssertionError(f"no end in {params.max_tokens} tokens: {answer[:200]!r}")


def test_answers_to_500_random_schemas_are_valid() -> None:
    seen: set[str] = set()
    seed = 0
    while len(seen) < NUM_SCHEMAS:
        schema = whole_schema(seed)
        if (text := json.dumps(schema)) not in seen:
            seen.add(text)
            answer = json.loads(written(schema, seed, SMALL))
            jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)
        seed += 1


def test_and_with_the_real_vocabulary(tmp_path: Path) -> None:
    write_tekken(tmp_path)
    real = read_vocabulary(tmp_path / "tekken.json")
    for seed in range(NUM_WITH_REAL_VOCABULARY):
        schema = whole_schema(seed)
        answer = json.loads(written(schema, seed, real))
        jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)
