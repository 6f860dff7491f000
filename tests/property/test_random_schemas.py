"""Whatever the schema, what a model without any sense writes under its grammar at temperature 1 is valid."""

from __future__ import annotations

import json
import random
import string
from functools import cache
from typing import Any

import jsonschema
import llguidance
import torch

from sparkstral.chat.grammar import grammar_for
from sparkstral.sampling.sampler import SamplingRow, sample
from sparkstral.structured.check import GrammarCheck
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.structured.vocabulary import Vocabulary, build_grammar_tokenizer
from sparkstral.types import ChatMessage, ChatRequest, ResponseFormat, SamplingParams, TextPart

EOS, NUM_SPECIAL = 2, 40
VOCAB_SIZE = NUM_SPECIAL + 256 + 3
PIECES = (*(bytes([i]) for i in range(256)), b'":', b'",', b'"}')  # single bytes, and tokens that cross JSON's borders
NUM_SCHEMAS = 500


@cache
def tokenizer() -> llguidance.LLTokenizer:
    return build_grammar_tokenizer(Vocabulary(PIECES, NUM_SPECIAL, r"\s+|\S+"), VOCAB_SIZE)


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """All that agents' tools and answers are described with."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format"]
    nested = ["object", "object", "array", "anyOf", "ref"] if depth < 3 else []
    kind = rng.choice(["object"] * 7 + ["array", "anyOf", "string"] if depth == 0 else kinds + nested)
    match kind:
        case "string":
            low = rng.randrange(4)
            return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(8)}
        case "integer":
            low = rng.randint(-1000, 1000)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(500)}
        case "number":
            low = rng.randint(-50, 50)
            return {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.randint(1, 9)}
        case "boolean" | "null":
            return {"type": kind}
        case "enum":
            return {"enum": rng.sample(["a", "é日", 1, 2.5, None, True, [1], {"k": "v"}], rng.randint(1, 4))}
        case "const":
            return {"const": rng.choice(["x y", 7, False, [], '"quoted"'])}
        case "pattern":
            return {"type": "string", "pattern": rng.choice([r"^[A-Z]{2} [0-9]{3}$", r"^(yes|no)$", r"^a+b?$"])}
        case "format":
            return {"type": "string", "format": rng.choice(["date", "uuid", "ipv4"])}
        case "object":
            names = rng.sample([*string.ascii_lowercase, "größe", "a b", 'q"'], rng.randint(0, 4))
            properties = {name: random_schema(rng, depth + 1) for name in names}
            required = [name for name in names if rng.random() < 0.6]
            return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        case "array":
            low = rng.randrange(3)
            items = random_schema(rng, depth + 1)
            return {"type": "array", "items": items, "minItems": low, "maxItems": low + rng.randrange(3)}
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
        case _:
            return {"$ref": "#/$defs/tree"}


def written(schema: dict[str, Any], seed: int) -> str:
    """An answer whose every token is drawn at temperature 1 from logits that know nothing, but like to end things."""
    request = ChatRequest(
        (ChatMessage("user", (TextPart("x"),)),), response_format=ResponseFormat("json_schema", schema)
    )
    grammar = grammar_for(request, GrammarCheck())
    assert grammar is not None
    matcher = CompiledGrammar(tokenizer(), grammar.lark).matcher(())
    params = SamplingParams(max_tokens=2000, temperature=1.0, stop_token_ids=(EOS,))
    noise = torch.Generator().manual_seed(seed)
    ends = torch.zeros(VOCAB_SIZE)
    ends[[EOS, *(NUM_SPECIAL + ord(c) for c in '"]}')]] = 5
    answer = b""
    for position in range(params.max_tokens):
        logits = torch.randn(1, VOCAB_SIZE, generator=noise) + ends
        (token_id,) = sample(logits, [SamplingRow(params, seed, position, matcher.bitmask())])
        assert isinstance(token_id, int), token_id
        if token_id == EOS:
            return answer.decode()
        matcher.advance(token_id)
        answer += PIECES[token_id - NUM_SPECIAL]
    raise AssertionError(f"no end in {params.max_tokens} tokens: {answer[:200]!r}")


def test_answers_to_500_random_schemas_are_valid() -> None:
    tree = {
        "type": "object",
        "properties": {"label": {"enum": ["x", "y"]}, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
        "required": ["label", "next"],
        "additionalProperties": False,
    }
    seen = set()
    for seed in range(NUM_SCHEMAS):
        schema = {**random_schema(random.Random(seed)), "$defs": {"tree": tree}}
        answer = json.loads(written(schema, seed))
        jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)
        seen.add(json.dumps(schema))
    assert len(seen) > NUM_SCHEMAS * 0.7
