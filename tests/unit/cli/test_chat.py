"""`sparkstral chat`: what it prints and where, how it fails, and how it is left."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from sparkstral.api.app import create_app
from sparkstral.cli.app import app
from sparkstral.config import ServerConfig
from tests.support.fake_engine import FakeEngine, written
from tests.support.server import served
from tests.support.tekken import v15_tokenizer, write_tekken
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


def test_images_are_shown_with_the_question(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "red.png"
    Image.new("RGB", (28, 28), "red").save(file)
    engine = FakeEngine(lambda request: written(v15_tokenizer(), "Red.", "</s>"))
    with served(create_app(engine, v15_tokenizer(), ServerConfig())) as url:
        ended = run("chat", "--url", url, "--image", str(file), "--image", str(file), "Which colour?")
    assert (ended.code, ended.out) == (0, "Red.\n")
    assert len(engine.requests[0].images) == 2


def test_an_image_that_is_not_there_is_a_usage_error(run: Run) -> None:
    ended = run("chat", "--url", "http://127.0.0.1:9", "--image", "nowhere.png", "What is it?")
    assert ended.code == 2
    assert "--image nowhere.png cannot be read" in ended.err


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


class Terminal:
    """Types lines at each prompt; then Ctrl-D."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
        self._lines = iter(lines)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", self._input)

    def _input(self, prompt: str = "") -> str:
        line = next(self._lines, None)
        if line is None:
            raise EOFError
        return line


def prompt_lengths(engine: FakeEngine) -> list[int]:
    """How long each prompt was that the engine got."""
    return [len(request.prompt_token_ids) for request in engine.requests]


def talk(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> str:
    """`sparkstral chat` on a terminal until it ends by itself; what it printed."""
    with served(create_app(engine, v15_tokenizer(), ServerConfig())) as url:
        app(["chat", "--url", url], standalone_mode=False)
    return capsys.readouterr().out


def test_a_conversation_goes_on_until_ctrl_d(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(lambda request: written(v15_tokenizer(), "Yes.", "</s>"))
    Terminal(monkeypatch, "One?", "Two?", "/reset", "One?")
    assert talk(engine, capsys).count("Yes.") == 3
    first, second, third = prompt_lengths(engine)
    assert first < second
    assert third == first


def test_results_are_asked_until_the_model_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = written(v15_tokenizer(), "[TOOL_CALLS]", "tides", "[ARGS]", "{}", "</s>")
    engine = FakeEngine(lambda request: call if len(engine.requests) < 3 else written(v15_tokenizer(), "Low.", "</s>"))
    Terminal(monkeypatch, "Tides?", "unknown", "low")
    assert "Low." in talk(engine, capsys)
    assert len(engine.requests) == 3


def test_ctrl_c_stops_an_answer_and_the_talk_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def interrupt() -> None:
        asked.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    def script(request: object) -> list[int]:
        engine.hang_after = None if asked.is_set() else 1
        asked.set()
        return written(v15_tokenizer(), "An endless story", "</s>")

    engine = FakeEngine(script)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    Terminal(monkeypatch, "Tell me.", "Tell me.")
    before, _, after = talk(engine, capsys).partition("stopped")
    interrupting.join()
    assert "endless story" not in before
    assert "An endless story" in after
    first, second = prompt_lengths(engine)
    assert first == second  # the question that was not answered is forgotten
    assert engine.has_aborted.is_set()
