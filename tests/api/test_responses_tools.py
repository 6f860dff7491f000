"""What agents send to /v1/responses beyond functions: namespaces, custom tools, searches, references, foreign items."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from tests.api.conftest import MODEL, Doors
from tests.api.test_responses import BOTH, WEATHER, ask, events_of, post

JS: Any = {
    "type": "function",
    "name": "js",
    "description": "Run it",
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
    "strict": False,
}
NODE: Any = {"type": "namespace", "name": "mcp__node_repl", "description": "A REPL.", "tools": [JS]}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: HUNK+"},
}
SEARCH: Any = {"type": "tool_search", "execution": "client", "description": "Finds tools", "parameters": {}}
HI: Any = {"role": "user", "content": "Hi"}


def call(name: str, arguments: dict[str, Any]) -> list[str]:
    return ["[TOOL_CALLS]", name, "[ARGS]", json.dumps(arguments), "</s>"]


def prompt(doors: Doors, engine: Any) -> str:
    return doors.spelled(engine.requests[-1].prompt_token_ids)


@BOTH
def test_a_tool_of_a_namespace_is_offered_called_and_remembered(doors: Doors, stream: bool) -> None:
    engine = doors.engine(*call("mcp__node_repl__js", {"code": "1+1"}))
    client = doors.sdk(engine)
    item = ask(client, stream, tools=[NODE]).output[0]
    assert (item.type, item.namespace, item.name) == ("function_call", "mcp__node_repl", "js")
    assert '"name": "mcp__node_repl__js", "description": "A REPL.\\n\\nRun it"' in prompt(doors, engine)
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "2"}
    ask(client, stream, input=[HI, item.to_dict(), result], tools=[NODE])
    assert '[TOOL_CALLS]mcp__node_repl__js[ARGS]{"code": "1+1"}</s>[TOOL_RESULTS]2' in prompt(doors, engine)
    choice: Any = {"type": "function", "name": "js", "namespace": NODE["name"]}
    ask(client, stream, tools=[NODE, WEATHER], tool_choice=choice)
    assert "get_weather" not in engine.requests[-1].grammar.lark


def test_names_that_the_format_cannot_say_are_spelled_and_found_again(doors: Doors) -> None:
    space = {**NODE, "name": "files.of." + "x" * 60, "tools": [JS, {**JS, "name": "ts"}]}
    engine = doors.engine("Hi", "</s>")
    post(doors, engine, {"tools": [space]})
    _, offered, _ = re.split(r"\[/?AVAILABLE_TOOLS\]", prompt(doors, engine))
    first, second = (tool["function"]["name"] for tool in json.loads(offered))
    assert first != second
    assert len(first) == len(second) == 64
    item = ask(doors.sdk(doors.engine(*call(second, {}))), False, tools=[space]).output[0]
    assert (item.namespace, item.name) == (space["name"], "ts")


@BOTH
def test_a_custom_tool_is_a_function_of_one_text(doors: Doors, stream: bool) -> None:
    engine = doors.engine(*call("apply_patch", {"input": "*** Begin\n+é"}))
    client = doors.sdk(engine)
    response = ask(client, stream, tools=[PATCH])
    item = response.output[0]
    assert (item.type, item.name, item.input, item.status) == (
        "custom_tool_call", "apply_patch", "*** Begin\n+é", "completed",
    )  # fmt: skip
    assert "start: HUNK+" in prompt(doors, engine)
    result: Any = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "Done."}
    ask(client, stream, input=[HI, item.to_dict(), result], tools=[PATCH])
    told = prompt(doors, engine)
    assert told.endswith('apply_patch[ARGS]{"input": "*** Begin\\n+é"}</s>[TOOL_RESULTS]Done.[/TOOL_RESULTS]')
    ask(client, stream, previous_response_id=response.id, input=[result], tools=[PATCH])
    assert prompt(doors, engine).endswith(told.split("[/INST]")[-1])


def test_the_input_of_a_custom_tool_is_streamed_whole(doors: Doors) -> None:
    pieces = call("apply_patch", {"input": "a\nb"})
    events = events_of(post(doors, doors.engine(*pieces), {"tools": [PATCH], "stream": True}))
    told = [(e["type"], e.get("delta", e.get("input"))) for e in events if "custom_tool_call_input" in e["type"]]
    assert told == [(f"response.custom_tool_call_input.{end}", "a\nb") for end in ("delta", "done")]
    cut = ask(doors.sdk(doors.engine(*pieces)), False, tools=[PATCH], max_output_tokens=6)
    assert (cut.status, cut.output[0].type, cut.output[0].status) == ("incomplete", "custom_tool_call", "incomplete")


def test_tools_come_with_items_too(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    more = {"type": "additional_tools", "role": "developer", "tools": [NODE, {"type": "web_search"}]}
    answer = post(doors, engine, {"input": [{**more, "tools": []}, HI, more], "tools": [WEATHER]})
    assert "input[2].tools[1].web_search" in answer.headers["x-sparkstral-ignored"]
    assert "get_weather" in prompt(doors, engine)
    assert "mcp__node_repl__js" in prompt(doors, engine)
    # A later item's tool takes the place of one of the same name.
    again = {**more, "tools": [{**WEATHER, "description": "Better"}]}
    assert post(doors, engine, {"input": [HI, again], "tools": [WEATHER]}).status_code == 200
    assert "Better" in prompt(doors, engine)
    assert "Weather of a town" not in prompt(doors, engine)


@BOTH
def test_a_search_for_tools(doors: Doors, stream: bool) -> None:
    engine = doors.engine(*call("tool_search", {"query": "js"}))
    client = doors.sdk(engine)
    item = ask(client, stream, tools=[SEARCH]).output[0]
    assert (item.type, item.execution, item.arguments) == ("tool_search_call", "client", {"query": "js"})
    found = {"type": "tool_search_output", "call_id": item.call_id, "execution": "client", "tools": [NODE]}
    ask(client, stream, input=[HI, item.to_dict(), found], tools=[SEARCH])
    told = prompt(doors, engine)
    assert '"name": "mcp__node_repl__js"' in told
    assert told.endswith('{"query": "js"}</s>[TOOL_RESULTS]Found: mcp__node_repl__js[/TOOL_RESULTS]')


def test_items_that_are_referred_to_are_found_again(doors: Doors) -> None:
    engine = doors.engine("[THINK]", "Hm.", "[/THINK]", "Let me see.", *call("get_weather", {"town": "Ås"}))
    client = doors.sdk(engine)
    body: Any = {"tools": [WEATHER], "reasoning": {"effort": "high"}}
    first = ask(client, False, **body)
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "rain"}
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    ask(client, False, input=[HI, *references, result], **body)
    ask(client, False, input=[HI, *({"id": item.id} for item in first.output), result], **body)
    ask(client, False, input=[HI, *(item.to_dict() for item in first.output), result], **body)
    assert len({request.prompt_token_ids for request in engine.requests[1:]}) == 1
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not beyond a restart") as caught:
        ask(client, False, input=[HI, *references, result], **body)
    assert caught.value.param == "input[1].id"


@pytest.mark.parametrize(
    ("items", "told"),
    [
        (
            [
                {"type": "local_shell_call", "id": "x", "call_id": "c", "status": "completed",
                 "action": {"type": "exec", "command": ["ls"], "env": {}}},
                {"type": "local_shell_call_output", "id": "c", "output": "a.txt"},
            ],
            '[TOOL_CALLS]local_shell[ARGS]{"type": "exec", "command": ["ls"], "env": {}}</s>[TOOL_RESULTS]a.txt',
        ),
        (
            [
                {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
                {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]},
            ],
            '[TOOL_CALLS]shell[ARGS]{"commands": ["ls"]}</s>[TOOL_RESULTS][{"stdout": "a", "stderr": ""}]',
        ),
        (
            [
                {"type": "apply_patch_call", "call_id": "c", "status": "completed",
                 "operation": {"type": "delete_file", "path": "a"}},
                {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
            ],
            '[TOOL_CALLS]apply_patch[ARGS]{"type": "delete_file", "path": "a"}</s>[TOOL_RESULTS]failed',
        ),
        (
            [{"type": "agent_message", "author": "/root", "recipient": "/root/a",
              "content": [{"type": "input_text", "text": "Go on."}, {"type": "encrypted_content", "x": 1}]}],
            "/root says:\nGo on.",
        ),
    ],
    ids=lambda value: value[0]["type"] if isinstance(value, list) else "",
)  # fmt: skip
def test_items_of_other_kinds_that_mean_something_are_read(doors: Doors, items: list[Any], told: str) -> None:
    engine = doors.engine("Hi", "</s>")
    assert post(doors, engine, {"input": [HI, *items]}).status_code == 200
    assert told in prompt(doors, engine)


def test_the_other_items_are_left_out_with_a_word(doors: Doors) -> None:
    kinds = ["web_search_call", "file_search_call", "mcp_list_tools", "compaction", "image_generation_call"]
    engine = doors.engine("Hi", "</s>")
    answer = post(doors, engine, {"input": [HI, *({"type": kind, "id": "x", "tools": []} for kind in kinds)]})
    assert answer.status_code == 200
    for i, kind in enumerate(kinds):
        assert f"input[{i + 1}].{kind}" in answer.headers["x-sparkstral-ignored"]
    assert prompt(doors, engine).endswith("[INST]Hi[/INST]")


def test_a_choice_among_some_of_the_tools(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")

    def choose(mode: str, *names: str) -> Any:
        allowed = [{"type": "function", "name": name} for name in names]
        choice = {"type": "allowed_tools", "mode": mode, "tools": allowed}
        return post(doors, engine, {"tools": [WEATHER, JS], "tool_choice": choice})

    assert choose("auto", "js").status_code == 200
    assert "get_weather" in prompt(doors, engine)
    assert "get_weather" not in engine.requests[-1].grammar.lark
    assert choose("required", "js").status_code == 200
    assert "answer: calls" in engine.requests[-1].grammar.lark
    assert choose("auto").status_code == 200
    assert engine.requests[-1].grammar is None
    for refused in (choose("required"), choose("auto", "py")):
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


def test_the_model_of_the_official_client_knows_all_of_it(doors: Doors) -> None:
    client = doors.sdk(doors.engine(*call("mcp__node_repl__js", {"code": "1"})))
    with client.responses.stream(model=MODEL, input="x", tools=[NODE, PATCH, SEARCH]) as events:
        final = events.get_final_response()
    assert [tool.type for tool in final.tools] == ["namespace", "custom", "tool_search"]
