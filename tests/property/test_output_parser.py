"""For any tokens, and any cut of them into steps, the stream folds to what the whole output says."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstral.chat.fold import Fold, FoldedMessage
from sparkstral.chat.output_parser import OutputParser
from sparkstral.chat.stop_strings import StopStrings
from sparkstral.types import (
    Finished,
    FinishReason,
    OutputEvent,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from tests.support.tekken import v15_tokenizer

EOS, TOOL_CALLS, ARGS, THINK, END_THINK = 2, 9, 32, 34, 35
SPACE = " \t\r\n"

words = st.text(st.sampled_from('ab[]{}"\\ \n\tTHINK/é日🎉\x00'), max_size=12) | st.text(max_size=6)
spaces = st.text(st.sampled_from(SPACE), max_size=3)
names = st.text(st.sampled_from("abz_-09"), min_size=1, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, values, max_size=3).map(lambda o: json.dumps(o, ensure_ascii=False))


@st.composite
def text_tokens(draw: st.DrawFn, text: str) -> list[int]:
    """A tokenisation of `text`: the usual one, or its bytes one by one, or one after the other."""
    cut = draw(st.integers(0, len(text)))
    return v15_tokenizer().encode(text[:cut]) + [
        1000 + byte for byte in text[cut:].encode("utf-8", "replace")
    ]


@st.composite
def outputs(draw: st.DrawFn) -> list[int]:
    """Answers as a model writes them, and nearly so."""
    tokens: list[int] = []

    def write(text: str) -> None:
        """The text, now and then with the first byte of a character at its end."""
        tokens.extend(draw(text_tokens(text)))
        tokens.extend(draw(st.sampled_from([[], [], [], [1000 + 0xE2]])))

    for kind in draw(st.lists(st.sampled_from(["text", "think", "call", "cut call", "marker"]), max_size=6)):
        if kind == "text":
            write(draw(words))
        elif kind == "think":
            tokens.append(THINK)
            write(draw(words))
            tokens.append(END_THINK)
        elif kind == "marker":
            tokens.append(draw(st.sampled_from([TOOL_CALLS, ARGS, THINK, END_THINK, 3, 999])))
        else:
            tokens.append(TOOL_CALLS)
            write(draw(names))
            tokens.append(ARGS)
            arguments = draw(spaces) + draw(objects) + draw(spaces)
            if kind == "cut call":
                arguments = arguments[: draw(st.integers(0, len(arguments)))]
            write(arguments)
    return [*tokens, EOS] if draw(st.booleans()) else tokens


def any_tokens() -> st.SearchStrategy[list[int]]:
    """Tokens without any order: markers, broken characters, rare tokens."""
    byte = st.integers(1000, 1255)
    marker = st.sampled_from([EOS, TOOL_CALLS, TOOL_CALLS, ARGS, ARGS, THINK, END_THINK, 0, 3, 500])
    brace = st.sampled_from([1000 + ord(c) for c in '{}"\\ '])
    return st.lists(byte | marker | brace | st.integers(1256, 131_071), max_size=24)


def steps_of(tokens: Sequence[int]) -> st.SearchStrategy[list[list[int]]]:
    """Ways to cut `tokens` into the engine's steps."""
    cuts = st.lists(st.integers(0, len(tokens)), max_size=len(tokens)).map(sorted)
    return cuts.map(lambda at: [list(tokens[a:b]) for a, b in itertools.pairwise([0, *at, len(tokens)])])


def stream(steps: Sequence[Sequence[int]], *, prefilled_think: bool = False) -> list[OutputEvent]:
    numbers = itertools.count()
    parser = OutputParser(
        v15_tokenizer(), prefilled_think=prefilled_think, new_call_id=lambda: f"{next(numbers):09}"
    )
    events = [event for step in steps for event in parser.feed(step)]
    ended = any(EOS in step for step in steps)
    return events + parser.finish(FinishReason.STOP if ended else FinishReason.LENGTH, num_prompt_tokens=1)


def folded(events: list[OutputEvent]) -> FoldedMessage:
    fold = Fold()
    fold.add(events)
    return fold.message()


def parse_whole(tokens: list[int], prefilled_think: bool) -> dict[str, Any]:
    """The same, written a second time for a whole output: each run of bytes is decoded and split at once."""
    content, reasoning, calls = "", "", []
    ended = EOS in tokens
    state, run = ("reasoning" if prefilled_think else "text"), b""

    def close(by_model: bool = True) -> None:
        nonlocal content, reasoning, state, run
        text, run, closing, state = run.decode("utf-8", "replace"), b"", state, "text"
        if closing == "reasoning":
            reasoning += text
        elif closing == "arguments":
            text = text.lstrip(SPACE)
            end = len(text.rstrip(SPACE))
            if text.startswith("{"):
                braces = [m for m in re.finditer(r'"(?:\\.|[^"\\])*"?|[{}]', text, re.DOTALL) if m[0] in "{}"]
                depths = itertools.accumulate(1 if m[0] == "{" else -1 for m in braces)
                ends = [m.end() for m, depth in zip(braces, depths, strict=True) if depth == 0]
                end = ends[0] if ends else len(text)
            calls[-1][1] = text[:end] or ("{}" if by_model else "")
            content += text[end:] if text[end:].strip(SPACE) else ""
        elif closing != "name" or by_model:  # a name that the limit cut is no text
            content += text

    for token in itertools.takewhile(lambda token: token != EOS, tokens):
        if token >= 1000:
            run += v15_tokenizer().token_bytes(token)
        elif token == TOOL_CALLS:
            close()
            state = "name"
        elif token == ARGS and state == "name":
            name = run.decode("utf-8", "replace").strip()
            if name:
                calls.append([name, ""])
                run, state = b"", "arguments"
            else:
                close()
        elif token == THINK and state != "reasoning":
            close()
            state = "reasoning"
        elif token == END_THINK and state == "reasoning":
            close()
    close(by_model=ended)
    reason = "length" if not ended else "tool_calls" if calls else "stop"
    return {"content": content, "reasoning": reasoning, "calls": calls, "reason": reason}


@settings(max_examples=500, deadline=None)
@given(st.data(), st.booleans())
def test_a_stream_folds_to_the_whole(data: st.DataObject, prefilled_think: bool) -> None:
    tokens = data.draw(outputs())
    message = folded(stream(data.draw(steps_of(tokens)), prefilled_think=prefilled_think))
    assert {
        "content": message.content,
        "reasoning": message.reasoning,
        "calls": [[call.name, call.arguments] for call in message.tool_calls],
        "reason": message.finish_reason,
    } == parse_whole(tokens, prefilled_think)


TEXTS = [
    '{"a": "}{"}', '{"b": [1, {}]}', " ", "{", "}", '"', "\\", "[THINK]", "[ARGS]", "né日🎉", "run", "\n", "\x00",
]  # fmt: skip


@settings(max_examples=5000, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_a_stream_folds_to_the_whole_for_thousands_of_outputs(seed: int) -> None:
    """The same with outputs that one random number gives: a tenth of the time an example."""
    rng = random.Random(seed)
    tokens: list[int] = []
    for _ in range(rng.randrange(12)):
        roll = rng.random()
        if roll < 0.25:
            tokens += [TOOL_CALLS, *v15_tokenizer().encode("run"), ARGS]
        elif roll < 0.5:
            tokens.append(rng.choice([TOOL_CALLS, ARGS, THINK, THINK, END_THINK, END_THINK, 3, 999]))
        elif roll < 0.6:
            tokens.append(1000 + rng.randrange(256))
        else:
            text = rng.choice(TEXTS)
            whole = rng.random() < 0.5
            tokens += v15_tokenizer().encode(text) if whole else [1000 + byte for byte in text.encode()]
    if rng.random() < 0.5:
        tokens.append(EOS)
    cuts = sorted(rng.randint(0, len(tokens)) for _ in range(rng.randrange(6)))
    prefilled_think = rng.random() < 0.3
    message = folded(
        stream(
            [tokens[a:b] for a, b in itertools.pairwise([0, *cuts, len(tokens)])], prefilled_think=prefilled_think
        )
    )
    assert {
        "content": message.content,
        "reasoning": message.reasoning,
        "calls": [[call.name, call.arguments] for call in message.tool_calls],
        "reason": message.finish_reason,
    } == parse_whole(tokens, prefilled_think)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_any_cut_of_any_tokens_folds_alike(data: st.DataObject) -> None:
    tokens = data.draw(any_tokens())
    assert folded(stream(data.draw(steps_of(tokens)))) == folded(stream([tokens]))


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_events_keep_their_order(data: st.DataObject) -> None:
    tokens = data.draw(any_tokens() | outputs())
    *events, last = stream(data.draw(steps_of(tokens)))
    assert isinstance(last, Finished)
    open_call, num_calls = None, 0
    for event in events:
        match event:
            case ToolCallBegin(index):
                assert (open_call, index) == (None, num_calls)
                open_call, num_calls = index, num_calls + 1
            case ToolCallArguments(index, delta):
                assert index == open_call
                assert delta
            case ToolCallEnd(index):
                assert index == open_call
                open_call = None
            case _:
                assert open_call is None
                assert not isinstance(event, Finished)
    assert open_call is None


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.text("abc", max_size=4), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_alike_at_any_split(deltas: list[str], stop: list[str]) -> None:
    def cut(texts: list[str]) -> tuple[str, str | None]:
        stop_strings = StopStrings(stop)
        events = [e for text in texts for e in stop_strings.feed([TextDelta(text)])]
        end = stop_strings.feed(stream([])[-1:])
        assert isinstance(end[-1], Finished)
        return "".join(e.text for e in events + end if isinstance(e, TextDelta)), stop_strings.matched

    whole = "".join(deltas)
    text, matched = cut(deltas)
    assert (text, matched) == cut([whole])
    assert not any(s in text for s in stop)
    assert whole == text if matched is None else whole.startswith(text + matched)
