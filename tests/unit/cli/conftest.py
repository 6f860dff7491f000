from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from sparkstral.api.app import create_app
from sparkstral.cli.app import main
from sparkstral.config import ServerConfig
from tests.support.fake_engine import FakeEngine, written
from tests.support.server import served
from tests.support.tekken import v15_tokenizer


@dataclass
class Ended:
    """A run of the program that is over."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process with arguments, and nothing on its standard input."""

    def run(*arguments: str, stdin: str = "") -> Ended:
        monkeypatch.setattr(sys, "argv", ["sparkstral", *arguments])
        monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
        monkeypatch.setattr(sys.stdin, "read", lambda: stdin, raising=False)
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        out, err = capsys.readouterr()
        return Ended(0 if code is None else int(code), out, err)

    return run


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """Starts a server whose model says the given pieces to everything; gives its URL."""
    tokenizer = v15_tokenizer()
    running = []

    def answering(*pieces: str) -> str:
        token_ids = written(tokenizer, *pieces)
        server = served(create_app(FakeEngine(lambda request: token_ids), tokenizer, ServerConfig()))
        url = server.__enter__()
        running.append(server)
        return url

    yield answering
    for server in running:
        server.__exit__(None, None, None)
