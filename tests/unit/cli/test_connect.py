from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sparkstral.cli.clients import CLIENTS
from sparkstral.config import SERVED_MODEL_NAME
from tests.unit.cli.conftest import Run
from tools.make_clients_doc import FILE, document

Answering = Callable[..., str]


@pytest.mark.parametrize("name", CLIENTS)
def test_the_settings_name_the_running_server(run: Run, answering: Answering, name: str) -> None:
    url = answering("Hi", "</s>")
    ended = run("connect", name, "--url", f"{url}/v1/")
    assert ended.code == 0
    assert CLIENTS[name].title in ended.err
    assert url in ended.out
    assert f"{url}/v1/v1" not in ended.out
    assert (SERVED_MODEL_NAME in ended.out) == (name != "open-webui")  # it asks for the names itself
    assert "{" not in ended.out.replace('{"', "").replace("{\n", "")
    if CLIENTS[name].kind == "yaml":
        assert yaml.safe_load(ended.out)
    told = json.loads(run("connect", name, "--url", url, "--json").out)
    assert told["text"] == ended.out
    if CLIENTS[name].kind == "toml":
        tomllib.loads(ended.out)
    if CLIENTS[name].kind == "json":
        assert json.loads(ended.out)["provider"]["sparkstral"]["models"][SERVED_MODEL_NAME]["limit"]["context"] == 4096


def test_the_printed_command_works(run: Run, answering: Answering) -> None:
    command = run("connect", "curl", "--url", answering("Hello!", "</s>")).out
    answer = subprocess.run(["bash", "-c", f"set -e; {command}"], capture_output=True, text=True, check=True).stdout
    assert json.loads(answer)["choices"][0]["message"]["content"] == "Hello!"


def test_the_key_is_filled_in(run: Run, answering: Answering) -> None:
    ended = run("connect", "claude-code", "--url", answering("Hi"), "--api-key", "sk-1")
    assert "export ANTHROPIC_AUTH_TOKEN=sk-1\n" in ended.out


HOSTILE = """a'b"c $(touch x) `touch y` \\ {key}: #é🌍\n- z"""


def texts_of(name: str) -> tuple[str, str]:
    """A client's settings for a server and a key of hostile names, and the kind of file that they are."""
    settings = CLIENTS[name]
    return settings.filled("http://h:1", HOSTILE, 4096, f"K{HOSTILE}"), settings.kind


@pytest.mark.parametrize("name", CLIENTS)
def test_no_name_and_no_key_is_more_than_a_text(name: str, tmp_path: Path) -> None:
    text, kind = texts_of(name)
    if kind == "sh":
        variables = re.findall(r"^export (\w+)=", text, re.MULTILINE)
        show = f"python3() {{ command {sys.executable} \"$@\"; }}\nclaude() {{ :; }}\nopen-webui() {{ :; }}\n"
        show += "curl() { python3 -c 'import json, sys; print(json.dumps(sys.argv))' \"$@\"; }\n"
        tail = "\npython3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
        ended = subprocess.run(["bash", "-c", show + text + tail], cwd=tmp_path, stdout=-1, text=True, check=True)
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        found = [lines[-1][variable] for variable in variables] or lines[0]
        assert list(tmp_path.iterdir()) == []
        assert f"K{HOSTILE}" in found or f"Authorization: Bearer K{HOSTILE}" in found
    elif kind != "text":
        read = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load, "python": ast.parse}[kind](text)
        if kind == "python":
            read = [node.value for node in ast.walk(read) if isinstance(node, ast.Constant)]
        held = list(values(read))
        assert HOSTILE in held or f"openai/{HOSTILE}" in held


def values(tree: Any) -> Iterator[Any]:
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from values(inner)
    yield tree


def test_without_a_client_they_are_listed(run: Run) -> None:
    assert run("connect").out.splitlines()[0].split() == ["claude-code", "Claude", "Code"]
    assert list(json.loads(run("connect", "--json").out)) == list(CLIENTS)


def test_an_unknown_client_and_a_server_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = run("connect", "emacs")
    assert (unknown.code, "claude-code" in unknown.err) == (2, True)
    absent = run("connect", "curl", "--url", "http://127.0.0.1:9")
    assert (absent.code, "sparkstral serve" in absent.err) == (1, True)
    for answer in (httpx.Response(401, json={"error": {"message": "a key is missing"}}), httpx.Response(200, text="x")):
        monkeypatch.setattr(httpx, "get", lambda *_, answer=answer, **__: answer)
        ended = run("connect", "curl")
        assert ended.code == 1
        assert "a key is missing" in ended.err or "no server of sparkstral" in ended.err


def test_the_document_is_that_of_today() -> None:
    assert FILE.read_text(encoding="utf-8") == document(), (
        "docs/clients.md is stale: run python -m tools.make_clients_doc"
    )
