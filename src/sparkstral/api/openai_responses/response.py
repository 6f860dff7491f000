"""Events → the events of a response's stream, and the response object itself, which the last of them holds.

Owns OpenAI's names and the order of its events. What is not streamed is the object of the last event.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkstral.api import sse
from sparkstral.api.openai_chat.response import logprobs_to_wire
from sparkstral.api.openai_responses.request import encode_reasoning, to_item, to_turns, wants_logprobs
from sparkstral.api.openai_responses.schema import ENCRYPTED_REASONING, ResponsesRequest
from sparkstral.api.openai_responses.tools import ClientTool
from sparkstral.types import (
    ChatMessage,
    Failed,
    Failure,
    Finished,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    TextLogprob,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    Usage,
)

Event = dict[str, Any]

_CALL_IDS = {"function_call": "fc", "custom_tool_call": "ctc", "tool_search_call": "tsc"}


def response_head(wire: ResponsesRequest, response_id: str, model: str, temperature: float, top_p: float) -> Event:
    """The object before there is an answer."""
    dumped = wire.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    reasoning = wire.reasoning
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": wire.instructions,
        "max_output_tokens": wire.max_output_tokens,
        "metadata": wire.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": wire.parallel_tool_calls is not False,
        "previous_response_id": wire.previous_response_id,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "service_tier": "default",
        "store": wire.store is not False,
        "temperature": temperature,
        "text": dumped.get("text") or {"format": {"type": "text"}},
        "tool_choice": dumped.get("tool_choice") or "auto",
        "tools": dumped.get("tools") or [],
        "top_logprobs": wire.top_logprobs or 0,
        "top_p": top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _usage(usage: Usage) -> Event:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
    }


@dataclass(slots=True)
class _OpenItem:
    """The item that is being written; `texts` are its pieces so far."""

    item: Event
    texts: list[str]
    logprobs: list[TextLogprob]
    tool: ClientTool | None = None  # of a call


class ResponseBuilder:
    """Follows the events of one answer."""

    def __init__(self, head: Event, wire: ResponsesRequest, tools: Mapping[str, ClientTool]) -> None:
        """`tools`: what the client knows of a tool, by the name that the model knows."""
        self.response = head
        self._tools = tools
        self._sends_summary = bool(wire.reasoning and wire.reasoning.summary not in (None, "none"))
        self._with_logprobs = wants_logprobs(wire)
        self._with_encrypted = ENCRYPTED_REASONING in (wire.include or ())
        self._has_begun = False
        self._open: _OpenItem | None = None
        self._number = 0
        self.messages: tuple[ChatMessage, ...] = ()  # the answer as a turn, once it is complete

    def feed(self, event: OutputEvent) -> list[Event]:
        """The stream's events of one event."""
        events: list[Event] = []
        if not self._has_begun:
            self._has_begun = True
            events += [self._whole("response.created"), self._whole("response.in_progress")]
        match event:
            case TextDelta(text, logprobs):
                events += self._text(text, logprobs)
            case ReasoningDelta(text):
                events += self._reasoning(text)
            case ToolCallBegin(_, call_id, name):
                tool = self._tools.get(name) or ClientTool("function_call", name)
                events += self._begin(tool.begin(_id(_CALL_IDS[tool.item_type]), call_id), tool)
            case ToolCallArguments(_, delta) if self._is_open("function_call"):
                events.append(self._delta("response.function_call_arguments.delta", delta))
            case ToolCallArguments(_, delta):  # its form is not JSON's: it is told whole
                assert self._open is not None
                self._open.texts.append(delta)
            case ToolCallEnd():
                pass  # an item ends where the next one begins: the limit may have cut it
            case Finished(reason, usage):
                is_cut = reason == "length"
                events += self._end("incomplete" if is_cut else "completed")
                self.response |= {"usage": _usage(usage), "status": "incomplete" if is_cut else "completed"}
                if is_cut:
                    self.response["incomplete_details"] = {"reason": "max_output_tokens"}
                self.messages = tuple(to_turns([to_item(item) for item in self.response["output"]]))
                events.append(self._whole("response.incomplete" if is_cut else "response.completed"))
            case Failed(failure):
                events += self._end("incomplete")
                self.give_up(failure)
                events.append(self._whole("response.failed"))
        return events

    def give_up(self, failure: Failure | None) -> None:
        """There is no end to come: it has failed, or its client has left."""
        error = failure and {"code": "server_error", "message": failure.message}
        self.response |= {"status": "failed" if failure else "cancelled", "error": error}

    def write(self, event: OutputEvent) -> bytes:
        """The same as server-sent events."""
        return b"".join(sse.encode(item, item["type"]) for item in self.feed(event))

    def _event(self, kind: str, **content: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **content}

    def _whole(self, kind: str) -> Event:
        return self._event(kind, response={**self.response, "output": list(self.response["output"])})

    def _at(self, kind: str, **content: Any) -> Event:
        """An event about the open item."""
        assert self._open is not None
        index = len(self.response["output"])
        return self._event(kind, item_id=self._open.item["id"], output_index=index, **content)

    def _delta(self, kind: str, delta: str, **content: Any) -> Event:
        assert self._open is not None
        self._open.texts.append(delta)
        return self._at(kind, delta=delta, **content)

    def _begin(self, item: Event, tool: ClientTool | None = None) -> list[Event]:
        events = self._end("completed")
        self._open = _OpenItem(item, [], [], tool)
        index = len(self.response["output"])
        return [*events, self._event("response.output_item.added", output_index=index, item=dict(item))]

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._open.item["type"] == kind

    def _text(self, text: str, logprobs: Sequence[TextLogprob]) -> list[Event]:
        events: list[Event] = []
        if not self._is_open("message"):
            message = {"id": _id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
            events += self._begin(message)
            events.append(self._at("response.content_part.added", content_index=0, part=self._text_part("", ())))
        assert self._open is not None
        self._open.logprobs += logprobs
        told = _logprobs(logprobs)
        return [*events, self._delta("response.output_text.delta", text, content_index=0, logprobs=told)]

    def _text_part(self, text: str, logprobs: Sequence[TextLogprob]) -> Event:
        told = {"logprobs": _logprobs(logprobs)} if self._with_logprobs else {}
        return {"type": "output_text", "text": text, "annotations": [], **told}

    def _reasoning(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not self._is_open("reasoning"):
            events += self._begin({"id": _id("rs"), "type": "reasoning", "status": "in_progress", "summary": []})
            if self._sends_summary:
                part = {"type": "summary_text", "text": ""}
                events.append(self._at("response.reasoning_summary_part.added", summary_index=0, part=part))
            else:
                part = {"type": "reasoning_text", "text": ""}
                events.append(self._at("response.content_part.added", content_index=0, part=part))
        if self._sends_summary:
            return [*events, self._delta("response.reasoning_summary_text.delta", text, summary_index=0)]
        return [*events, self._delta("response.reasoning_text.delta", text, content_index=0)]

    def _end(self, status: str) -> list[Event]:
        """Ends the open item, if there is one."""
        if self._open is None:
            return []
        item, text, logprobs = self._open.item, "".join(self._open.texts), self._open.logprobs
        done: dict[str, Mapping[str, Any]]
        match item["type"]:
            case "message":
                part = self._text_part(text, logprobs)
                item["content"] = [part]
                done = {
                    "response.output_text.done": {
                        "content_index": 0, "text": text, "logprobs": _logprobs(logprobs),
                    },
                    "response.content_part.done": {"content_index": 0, "part": part},
                }  # fmt: skip
            case "reasoning" if self._sends_summary:
                part = {"type": "summary_text", "text": text}
                item["summary"] = [part]
                done = {
                    "response.reasoning_summary_text.done": {"summary_index": 0, "text": text},
                    "response.reasoning_summary_part.done": {"summary_index": 0, "part": part},
                }
            case "reasoning":
                part = {"type": "reasoning_text", "text": text}
                item["content"] = [part]
                done = {
                    "response.reasoning_text.done": {"content_index": 0, "text": text},
                    "response.content_part.done": {"content_index": 0, "part": part},
                }
            case kind:
                assert self._open.tool is not None
                self._open.tool.complete(item, text)
                done = {}
                if kind == "function_call":
                    done["response.function_call_arguments.done"] = {"name": item["name"], "arguments": text}
                elif kind == "custom_tool_call":
                    done["response.custom_tool_call_input.delta"] = {"delta": item["input"]}
                    done["response.custom_tool_call_input.done"] = {"input": item["input"]}
        if item["type"] == "reasoning" and self._with_encrypted:
            item["encrypted_content"] = encode_reasoning(text)
        item["status"] = status
        events = [self._at(kind, **content) for kind, content in done.items()]
        index = len(self.response["output"])
        events.append(self._event("response.output_item.done", output_index=index, item=item))
        self.response["output"].append(item)
        self._open = None
        return events


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _logprobs(logprobs: Sequence[TextLogprob]) -> list[Event]:
    content: list[Event] = logprobs_to_wire(logprobs)["content"]
    return content
