"""Events → the text completion object, and → its chunks: the same answer, whole or in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkstral.api import sse
from sparkstral.api.errors import FailedError, describe
from sparkstral.api.openai_chat.response import CompletionHead, total_usage, usage_to_wire
from sparkstral.chat.detokenizer import Detokenizer
from sparkstral.chat.fold import FoldedMessage
from sparkstral.types import Failed, Finished, OutputEvent, TextDelta, TextLogprob, Usage

KIND = "text_completion"


class _Offsets:
    """Where the tokens of one answer begin in its text, in characters: those of bytes that are a character together all
    begin with it, and control tokens take no room."""

    def __init__(self) -> None:
        self._detokenizer = Detokenizer()
        self._num_characters = 0

    def logprobs(self, logprobs: Sequence[TextLogprob]) -> dict[str, Any]:
        """The next tokens in OpenAI's older form: lists side by side."""
        offsets = []
        for item in logprobs:
            offsets.append(self._num_characters)
            if item.is_text:
                self._num_characters += len(self._detokenizer.feed(item.token))
        return {
            "tokens": [item.token.decode("utf-8", "replace") for item in logprobs],
            "token_logprobs": [item.logprob for item in logprobs],
            "top_logprobs": [_top(item) for item in logprobs],
            "text_offset": offsets,
        }


def _top(item: TextLogprob) -> dict[str, float] | None:
    if item.logprob is None:
        return None
    top = {token.decode("utf-8", "replace"): logprob for token, logprob in item.top}
    return top | {item.token.decode("utf-8", "replace"): item.logprob}


def _sum(usages: Sequence[Usage], num_variants: int) -> Usage:
    """Of all answers: those to one prompt stand side by side and count it once."""
    by_prompt = [total_usage(usages[i : i + num_variants]) for i in range(0, len(usages), num_variants)]
    return Usage(
        num_prompt_tokens=sum(usage.num_prompt_tokens for usage in by_prompt),
        num_completion_tokens=sum(usage.num_completion_tokens for usage in by_prompt),
        num_cached_tokens=sum(usage.num_cached_tokens for usage in by_prompt),
    )


def completion(
    head: CompletionHead, answers: Sequence[FoldedMessage], num_variants: int, *, with_logprobs: bool
) -> dict[str, Any]:
    """The whole answers, each of which has come to its end; `num_variants` of them to each prompt."""
    result = head.to_wire(KIND)
    result["choices"] = [
        {
            "index": index,
            "text": answer.content,
            "logprobs": _Offsets().logprobs(answer.logprobs) if with_logprobs else None,
            "finish_reason": answer.finish_reason,
        }
        for index, answer in enumerate(answers)
    ]
    usages = [answer.usage for answer in answers if answer.usage is not None]
    result["usage"] = usage_to_wire(_sum(usages, num_variants))
    return result


class TextChunkWriter:
    """Writes the events of `number` answers as server-sent chunks, one call an event."""

    def __init__(self, head: CompletionHead, *, include_usage: bool, number: int, num_variants: int) -> None:
        self._head = head
        self._include_usage = include_usage
        self._num_variants = num_variants
        self._offsets = [_Offsets() for _ in range(number)]
        self._usages: dict[int, Usage] = {}

    def write(self, numbered: tuple[int, OutputEvent]) -> bytes:
        """The chunks of an event and its answer's number."""
        index, event = numbered
        match event:
            case TextDelta(text, logprobs):
                told = self._offsets[index].logprobs(logprobs) if logprobs else None
                return self._chunk([_choice(index, text, told, None)])
            case Finished(reason, usage):
                self._usages[index] = usage
                end = self._chunk([_choice(index, "", None, reason)])
                if len(self._usages) < len(self._offsets):
                    return end
                if self._include_usage:
                    usages = [usage for _, usage in sorted(self._usages.items())]
                    end += self._chunk([], usage=usage_to_wire(_sum(usages, self._num_variants)))
                return end + sse.DONE
            case Failed(failure):
                _, body, _ = describe(FailedError(failure))
                return sse.encode(body)
            case _:
                return b""  # a text has no thoughts and no calls

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return sse.encode(self._head.to_wire(KIND) | {"choices": choices} | more)


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
