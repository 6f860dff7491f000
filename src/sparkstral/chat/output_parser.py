"""The model's token ids → what the client gets, while they come.

Owns the form of an answer, `([THINK] … [/THINK] | text | [TOOL_CALLS] name [ARGS] object)* </s>`, told apart
by the ids of the markers alone, never by their spelling. Must not know a protocol, nor what was asked for.

What a malformed answer becomes, and why:
- A marker where it means nothing ([ARGS] outside a call, [/THINK] without a beginning), or any other control
  token, is dropped: no control token may reach a client.
- A name that no [ARGS] follows, or an empty name, is no call that anybody could run: it is given as text. One that
  the limit has cut is nobody's: it would have become a call, and is no text for a user.
- Arguments are handed on as the model wrote them, valid or not: deltas that are out cannot be taken back, and
  agents answer a broken call with the error, from which the model recovers. No arguments at all are `{}` when
  the model ended the call itself, and stay empty when the answer was cut.
- A thought that is not closed ends where a call begins: the model has stopped thinking and acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from itertools import zip_longest

from sparkstral.chat.detokenizer import Detokenizer
from sparkstral.chat.tokenizer import ChatTokenizer, Control
from sparkstral.chat.tool_ids import new_tool_call_id
from sparkstral.types import (
    Finished,
    FinishReason,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    TextLogprob,
    TokenLogprob,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    Usage,
)

_SPACE = " \t\r\n"  # JSON's white space


class _Section(Enum):
    TEXT = auto()
    REASONING = auto()
    NAME = auto()  # after [TOOL_CALLS]
    ARGUMENTS = auto()  # after [ARGS]
    AFTER_CALL = auto()  # after a call's object: white space is nobody's until text follows it
    ENDED = auto()  # after </s>


class OutputParser:
    """Parses one sequence. Feed every token once, then finish once; events come as soon as certain."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        prefilled_think: bool = False,
        new_call_id: Callable[[], str] = new_tool_call_id,
    ) -> None:
        """`prefilled_think`: the prompt ended inside an open [THINK] (`Prompt.prefilled_think`)."""
        self._tokenizer = tokenizer
        self._new_call_id = new_call_id
        self._section = _Section.REASONING if prefilled_think else _Section.TEXT
        self._detokenizer = Detokenizer()
        self._events: list[OutputEvent] = []
        self._name = ""
        self._num_calls = 0
        self._arguments = _ObjectScanner()
        self._spaces = ""
        self._logprobs: list[TextLogprob] = []  # of text that is not out yet
        self.num_tokens = 0  # fed so far, </s> included
        self.num_reasoning_tokens = 0  # from [THINK] to [/THINK], both included

    def feed(self, token_ids: Iterable[int], logprobs: Iterable[TokenLogprob] = ()) -> list[OutputEvent]:
        """The events of the next tokens. Tokens after </s> are ignored.

        `logprobs`, one for each token if there are any, go out with the text of the answer: not with reasoning, not
        with calls.
        """
        run = bytearray()
        for token_id, logprob in zip_longest(token_ids, logprobs):
            if self._section is _Section.ENDED:
                break
            self.num_tokens += 1
            if self._tokenizer.is_control(token_id):
                self._write(self._detokenizer.feed(bytes(run)))
                run.clear()
                self._marker(token_id)
            else:
                self.num_reasoning_tokens += self._section is _Section.REASONING
                run += self._tokenizer.token_bytes(token_id)
                if logprob is not None and self._section in (_Section.TEXT, _Section.AFTER_CALL):
                    self._logprobs.append(text_logprob(logprob, self._tokenizer))
        self._write(self._detokenizer.feed(bytes(run)))
        return self._take()

    def finish(
        self, reason: FinishReason, *, num_prompt_tokens: int, num_cached_tokens: int = 0
    ) -> list[OutputEvent]:
        """The last events, `Finished` at the end. `reason` is the engine's."""
        self._close_section(cut=reason is not FinishReason.STOP)
        usage = Usage(
            num_prompt_tokens=num_prompt_tokens,
            num_completion_tokens=self.num_tokens,
            num_cached_tokens=num_cached_tokens,
            num_reasoning_tokens=self.num_reasoning_tokens,
        )
        if reason is FinishReason.LENGTH:
            self._events.append(Finished("length", usage))
        else:
            self._events.append(Finished("tool_calls" if self._num_calls else "stop", usage))
        return self._take()

    def _take(self) -> list[OutputEvent]:
        events, self._events = self._events, []
        return events

    def _marker(self, token_id: int) -> None:
        match token_id:
            case Control.EOS:
                self._close_section(cut=False)
                self._section = _Section.ENDED
            case Control.BEGIN_THINK:
                self.num_reasoning_tokens += 1
                if self._section is not _Section.REASONING:
                    self._close_section(cut=False)
                    self._section = _Section.REASONING
            case Control.END_THINK if self._section is _Section.REASONING:
                self.num_reasoning_tokens += 1
                self._close_section(cut=False)
            case Control.TOOL_CALLS:
                self._close_section(cut=False)
                self._section = _Section.NAME
            case Control.ARGS if self._section is _Section.NAME:
                self._write(self._detokenizer.flush())
                self._begin_call()
            case _:
                pass

    def _begin_call(self) -> None:
        name = self._name.strip()
        if not name:
            self._close_section(cut=False)
            return
        self._events.append(ToolCallBegin(self._num_calls, self._new_call_id(), name))
        self._num_calls += 1
        self._name = ""
        self._arguments = _ObjectScanner()
        self._section = _Section.ARGUMENTS

    def _close_section(self, *, cut: bool) -> None:
        """Ends the section, so that text follows. `cut`: it was not the model that ended it."""
        self._write(self._detokenizer.flush())
        name, self._name, self._spaces = self._name, "", ""
        self._logprobs.clear()
        section, self._section = self._section, _Section.TEXT
        if section is _Section.NAME and not cut:
            self._write(name)
        elif section is _Section.ARGUMENTS:
            if self._arguments.is_empty and not cut:
                self._events.append(ToolCallArguments(self._num_calls - 1, "{}"))
            self._events.append(ToolCallEnd(self._num_calls - 1))
        elif section is _Section.ENDED:
            self._section = section

    def _write(self, text: str) -> None:
        """Sends text to the section that it belongs to."""
        if not text:
            return
        match self._section:
            case _Section.TEXT:
                self._write_answer(text)
            case _Section.REASONING:
                self._events.append(ReasoningDelta(text))
            case _Section.NAME:
                self._name += text
            case _Section.ARGUMENTS:
                self._write_arguments(text)
            case _Section.AFTER_CALL:
                self._spaces += text
                if self._spaces.strip(_SPACE):
                    self._section = _Section.TEXT
                    text, self._spaces = self._spaces, ""
                    self._write_answer(text)

    def _write_answer(self, text: str) -> None:
        self._events.append(TextDelta(text, tuple(self._logprobs)))
        self._logprobs.clear()

    def _write_arguments(self, text: str) -> None:
        index = self._num_calls - 1
        delta, rest = self._arguments.feed(text)
        if delta:
            self._events.append(ToolCallArguments(index, delta))
        if self._arguments.is_complete:
            self._events.append(ToolCallEnd(index))
            self._section = _Section.AFTER_CALL
            self._write(rest)


def text_logprob(logprob: TokenLogprob, tokenizer: ChatTokenizer) -> TextLogprob:
    """The same with the tokens' bytes; a control token is spelled."""
    top = tuple((tokenizer.spelled_bytes(token_id), value) for token_id, value in logprob.top)
    is_text = not tokenizer.is_control(logprob.token_id)
    return TextLogprob(tokenizer.spelled_bytes(logprob.token_id), logprob.logprob, top, is_text)


class _ObjectScanner:
    """Finds where a JSON object ends, without parsing it. What begins otherwise never ends by itself.

    White space before the object is dropped. In what is no object, white space is held back, for it may be
    the last and is then dropped too.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._is_object = False
        self._held = ""
        self.is_empty = True
        self.is_complete = False

    def feed(self, text: str) -> tuple[str, str]:
        """(what belongs to the arguments, what follows their end)."""
        if self.is_empty:
            text = text.lstrip(_SPACE)
            if not text:
                return "", ""
            self.is_empty = False
            self._is_object = text[0] == "{"
        if not self._is_object:
            text = self._held + text
            delta = text.rstrip(_SPACE)
            self._held = text[len(delta) :]
            return delta, ""
        for position, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character == "{":
                self._depth += 1
            elif character == "}":
                self._depth -= 1
                if self._depth == 0:
                    self.is_complete = True
                    return text[: position + 1], text[position + 1 :]
        return text, ""
