"""`sparkstral chat`, asked once: what it prints and where, and how it fails."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tekken import write_tekken
from tests.unit.cli.conftest import Run


def test_an_answer_goes_to_standard_output(run: Run, answering: Callable[..., str]) -> None:
    ended = run("chat", "--url", answering("Good morning.", "</s>"), "Say good morning.")
    assert (ended.code, ended.out) == (0, "Good morning.\n")


def test_piped_text_is_the_question(run: Run, answering: Callable[..., str]) -> None:
    ended = run("chat", "--url", answering("Yes.", "</s>"), stdin="Is it raining?\n")
    assert (ended.code, ended.out) == (0, "Yes.\n")


def test_tool_calls_and_reasoning_are_shown(run: Run, answering: Callable[..., str]) -> None:
    url = answering("[THINK]", "I need it.", "[/THINK]", "[TOOL_CALLS]", "tides", "[ARGS]", '{"port": "Ribe"}', "</s>")
    ended = run("chat", "--url", url, "--effort", "high", "Tides?")
    assert ended.code == 0
    assert "I need it." in ended.out
    assert '→ tides {"port": "Ribe"}' in ended.out


def test_json_is_the_whole_completion(run: Run, answering: Callable[..., str]) -> None:
    ended = run("chat", "--url", answering("Yes.", "</s>"), "--json", "Is it raining?")
    assert json.loads(ended.out)["choices"][0]["message"]["content"] == "Yes."


def test_markup_in_an_answer_is_text(run: Run, answering: Callable[..., str]) -> None:
    assert run("chat", "--url", answering("[bold]no[/bold]", "</s>"), "?").out == "[bold]no[/bold]\n"


def test_nothing_to_ask_is_a_usage_error(run: Run) -> None:
    ended = run("chat", "--url", "http://127.0.0.1:9")
    assert ended.code == 2
    assert "Nothing to ask" in ended.err


def test_no_server_is_one_sentence(run: Run) -> None:
    ended = run("chat", "--url", "http://127.0.0.1:9", "Hello?")
    assert ended.code == 1
    assert ended.err.startswith("sparkstral: No server answers at http://127.0.0.1:9")
    assert "Traceback" not in ended.err


def test_the_servers_refusal_is_shown(run: Run, answering: Callable[..., str], tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text('[{"type": "function", "function": {}}]')
    ended = run("chat", "--url", answering("</s>"), "--tools", str(tools), "Hello?")
    assert ended.code == 1
    assert "tools[0].function.name" in ended.err


def test_bad_tool_files_are_named(run: Run, tmp_path: Path) -> None:
    missing = run("chat", "--url", "http://127.0.0.1:9", "--tools", str(tmp_path / "none.json"), "Hello?")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    ended = run("chat", "--url", "http://127.0.0.1:9", "--tools", str(broken), "Hello?")
    assert missing.code == ended.code == 2
    assert "none.json" in missing.err
    assert "not JSON" in ended.err


BYTES = "caf\udce9"  # as Python keeps a byte that is no UTF-8


@pytest.mark.parametrize("arguments", [(BYTES,), ("hi", "--system", BYTES)])
def test_what_is_no_text_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run("chat", "--url", "http://127.0.0.1:9", *arguments)
    assert ended.code == 2
    assert "not text in UTF-8" in ended.err


def test_bytes_on_standard_input_are_a_usage_error(run: Run, tmp_path: Path) -> None:
    write_tekken(tmp_path)
    for command in ("chat", "--url", "http://127.0.0.1:9"), ("inspect", "tokens", "--model", str(tmp_path)):
        ended = run(*command, stdin=BYTES)
        assert ended.code == 2
        assert "Standard input is not text in UTF-8" in ended.err


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said(run: Run, answering: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = answering("Yes.", "</s>")
    monkeypatch.setattr(sys, "stdout", FullDisk())
    ended = run("chat", "--url", url, "?")
    assert ended.code == 1
    assert "No space left" in ended.err


@pytest.mark.parametrize("url", ["http://[::1", "http://a:b", "http://127.0.0.1:9\n"])
def test_what_is_no_url_is_said(run: Run, url: str) -> None:
    ended = run("chat", "--url", url, "hi")
    assert ended.code == 1
    assert ended.err.startswith("sparkstral: ")


def test_the_url_may_be_that_of_an_sdk(run: Run, answering: Callable[..., str]) -> None:
    assert run("chat", "--url", answering("Yes.", "</s>") + "/v1", "?").out == "Yes.\n"


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\x7fELF", b'["\\ud800"]', b"1" + b"0" * 6000])
def test_a_file_that_is_no_json_is_named(run: Run, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "tools.json"
    file.write_bytes(content)
    ended = run("chat", "--url", "http://127.0.0.1:9", "--tools", str(file), "hi")
    assert ended.code == 2
    assert f"--tools {file}: not JSON" in ended.err
