"""Turns a conversation of the demo data program into token ids and marks the tokens that the model must say.

Owns the step from messages to ids, by mistral-common alone, so that training sees what a server renders; must
not know tensors. Source: docs/model.md, prompt grammar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from mistral_common.protocol.instruct.chunk import TextChunk, ThinkChunk
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from numpy.typing import NDArray

EOS = 2
BEGIN_INST = 3
END_INST = 4
BEGIN_TOOL_RESULTS = 7
END_TOOL_RESULTS = 8
PAD = 11


class Conversation(Protocol):
    """What the renderer reads of `sparkstral.demo`'s conversations."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def tools(self) -> Sequence[Any]: ...
    @property
    def reasoning_effort(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """token_ids of the whole conversation; spans are the assistant turns to learn as [begin, end), `</s>` included."""

    token_ids: list[int]
    spans: list[tuple[int, int]]
    images: tuple[NDArray[np.float32], ...] = ()  # [3, height, width], in the order of their tokens


def assistant_spans(token_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Where the assistant speaks: from after [/INST], or after the last of a row of tool results, through
    `</s>`."""
    spans = []
    begin = None
    for index, token_id in enumerate(token_ids):
        if begin is not None:
            if token_id == EOS:
                spans.append((begin, index + 1))
                begin = None
        elif token_id in (END_INST, END_TOOL_RESULTS) and index + 1 < len(token_ids):
            following = token_ids[index + 1]
            if following not in (BEGIN_INST, BEGIN_TOOL_RESULTS):
                begin = index + 1
    return spans


class Renderer:
    """Renders conversations with one tokenizer file."""

    def __init__(self, tekken_path: Path) -> None:
        self._tokenizer = MistralTokenizer.from_file(str(tekken_path), mode=ValidationMode.finetuning)
        self._tekken = self._tokenizer.instruct_tokenizer.tokenizer

    def render(self, conversation: Conversation) -> Rendered:
        """Ids of a conversation that ends with an assistant turn. Raises mistral-common's errors if it is not
        valid."""
        request = ChatCompletionRequest(
            messages=_native_messages(conversation.messages),
            tools=list(conversation.tools) or None,
            reasoning_effort=conversation.reasoning_effort,
        )
        encoded = self._tokenizer.encode_chat_completion(request)
        token_ids = encoded.tokens
        spoken = [message for message in conversation.messages if message["role"] == "assistant"]
        spans = zip(spoken, assistant_spans(token_ids), strict=True)
        learnt = [span for message, span in spans if message.get("is_learnt", True)]
        return Rendered(token_ids, learnt, tuple(encoded.images))

    def fragments(self) -> list[str]:
        """The entries of the vocabulary that are whole text (no control tokens, no parts of a character)."""
        entries = [
            self._tekken.id_to_byte_piece(i)
            for i in range(self._tekken.num_special_tokens, self._tekken.n_words)
        ]
        texts = [entry.decode("utf-8", errors="ignore") for entry in entries]
        return [text for text, entry in zip(texts, entries, strict=True) if text.encode() == entry]

    def text(self, token_ids: Sequence[int]) -> str:
        """The ids as text, control tokens spelled out."""
        return str(self._tekken.decode(list(token_ids), special_token_policy=SpecialTokenPolicy.KEEP))


def _native_messages(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """OpenAI-form messages as mistral-common takes them: reasoning as a chunk, call ids in the form that it
    accepts."""
    native = []
    call_ids: dict[str, str] = {}
    for message in messages:
        converted = {key: value for key, value in message.items() if key != "is_learnt"}
        if calls := converted.get("tool_calls"):
            for call in calls:
                call_ids[call["id"]] = f"{len(call_ids):09d}"
            converted["tool_calls"] = [{**call, "id": call_ids[call["id"]]} for call in calls]
        if converted["role"] == "tool":
            converted["tool_call_id"] = call_ids[converted["tool_call_id"]]
        if converted["role"] == "assistant":
            reasoning = converted.pop("reasoning", None)
            if reasoning:
                chunks: list[ThinkChunk | TextChunk] = [ThinkChunk(thinking=reasoning, closed=True)]
                if converted.get("content"):
                    chunks.append(TextChunk(text=converted["content"]))
                converted["content"] = chunks
        native.append(converted)
    return native
