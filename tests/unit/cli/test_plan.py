"""`sparkstral plan`: exit codes, what it prints, and models that are on the Hub."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkstral.checkpoint.plan import plan_load
from sparkstral.cli import plan as command
from sparkstral.errors import CheckpointError
from sparkstral.hub.headers import Fetch, fetch_headers, hub_fetch
from sparkstral.memory.holders import Holder
from sparkstral.memory.probe import AvailableMemory
from sparkstral.units import GiB
from tests.support.tiny_checkpoint import write_native
from tests.unit.cli.conftest import Run

REPO = "owner/tiny"


def planned(run: Run, *arguments: str, code: int = 0) -> dict[str, Any]:
    ended = run("plan", "--json", *arguments)
    assert ended.code == code, ended.err
    document: dict[str, Any] = json.loads(ended.out)
    return document


def test_the_released_model_is_planned_with_nothing_at_hand(run: Run) -> None:
    document = planned(run)
    assert document["fits"]
    assert document["max_model_len"] == 262_144
    assert document["total_bytes"] == sum(line["num_bytes"] for line in document["lines"])
    assert document["projection"]["label"] == "projected, not measured"
    assert document["serve"] == "sparkstral serve mistralai/Mistral-Small-4-119B-2603-NVFP4 --max-model-len 262144"


def test_exit_codes_say_whether_it_fits(run: Run) -> None:
    assert planned(run, "--max-model-len", "65536", "--no-mla", code=1)["spare_bytes"] < 0
    assert planned(run, "--max-model-len", "40000", "--no-mla", "--memory", "119GiB")["spare_bytes"] > 0
    assert not planned(run, "--memory", "64GiB", code=1)["fits"]
    assert run("plan", "--memory", "a lot").code == 2
    assert run("plan", "--live", "--memory", "1GiB").code == 2
    assert run("plan", "--kv", "int4").code == 2
    assert run("plan", "--max-model-len", "2000000").code == 2


def test_people_see_a_bar_the_lines_and_the_verdict(run: Run) -> None:
    ended = run("plan", "--concurrency", "40", "--max-model-len", "32768")
    text = re.sub(r"\s+", " ", ended.out)
    assert ended.code == 0
    spare = "to spare: one request may have 32,768"
    for words in ("█", "routed experts", "kept free", "projected, not measured", spare):
        assert words in text
    assert "--max-num-seqs 40" in text
    assert "--dense fp8 --kv fp8" in re.sub(r"\s+", " ", run("plan", "--kv", "fp8", "--dense", "fp8").out)
    refused = run("plan", "--no-mla", "--max-model-len", "42000")
    assert refused.code == 1
    assert "short by 0.11 GiB" in re.sub(r"\s+", " ", refused.out)


def test_live_counts_what_is_free_and_names_who_holds_the_rest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Holder(4242, "python vllm", 66 * GiB, "GPU")
    monkeypatch.setattr(command, "host_memory", lambda: AvailableMemory(40 * GiB, "MemAvailable"))
    monkeypatch.setattr(command, "gpu_free_bytes", lambda: None)
    monkeypatch.setattr(command, "gpu_holders", lambda: (other,))
    document = planned(run, "--live", code=1)
    assert document["available_bytes"] == 40 * GiB
    assert document["holders"][0]["process_id"] == 4242
    text = re.sub(r"\s+", " ", run("plan", "--live").out)
    assert "Another large model must be stopped first: python vllm (pid 4242, 66.00 GiB of GPU memory)" in text
    monkeypatch.setattr(command, "gpu_free_bytes", lambda: 139 * GiB)
    assert planned(run, "--live")["available_bytes"] == 139 * GiB


def test_a_folder_and_a_configuration_alone_can_be_planned(run: Run, tmp_path: Path) -> None:
    folder = write_native(tmp_path / "model")
    by_headers = planned(run, str(folder))
    by_params = planned(run, str(folder / "params.json"))
    assert (by_headers["source"], by_params["source"]) == ("headers", "params.json")
    assert by_headers["lines"][0]["num_bytes"] == by_params["lines"][0]["num_bytes"]
    assert run("plan", str(tmp_path)).code == 1


# ---- models on the Hub -----------------------------------------------------------------------------------------------


@contextmanager
def hub(folder: Path, *, ranges: bool = True) -> Iterator[tuple[str, list[tuple[str, str | None, int]]]]:
    """A Hub with the one repository `REPO`, whose files are those of `folder`; yields its URL and what was sent."""
    sent: list[tuple[str, str | None, int]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            prefix = f"/{REPO}/resolve/main/"
            path = folder / self.path.removeprefix(prefix)
            if not self.path.startswith(prefix) or not path.is_file():
                code = "EntryNotFound" if self.path.startswith(prefix) else "RepoNotFound"
                self.send_response(404)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content, wanted = path.read_bytes(), self.headers.get("Range")
            if wanted and ranges:
                begin, end = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
                part = content[begin : end + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(content)}")
            else:
                part = content
                self.send_response(200)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)
            sent.append((path.name, wanted, len(part)))

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None: ...  # who asked has left, as it does when it gets all of a file

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", sent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )


def test_a_repository_of_the_hub_is_planned_by_its_headers_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_native(tmp_path / "model", shards=3)
    monkeypatch.setattr("sparkstral.hub.headers._FIRST_BYTES", 4096)  # so that some headers take two requests
    with hub(folder) as (url, sent):
        at(url, monkeypatch)
        document = planned(run, REPO)
    assert document["source"] == "headers"
    assert document["lines"] == planned(run, str(folder))["lines"]
    weights = [count for name, wanted, count in sent if name.endswith(".safetensors")]
    assert len(weights) > 3
    assert all(wanted for name, wanted, _ in sent if name.endswith(".safetensors"))
    assert sum(weights) < sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_a_repository_that_is_not_there_says_what_to_do(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub(tmp_path) as (url, _):
        at(url, monkeypatch)
        missing = run("plan", "other/model")
        empty = run("plan", REPO)
    assert (missing.code, empty.code) == (1, 1)
    assert "no repository 'other/model' that you may read" in missing.err
    assert "neither params.json nor config.json" in empty.err


def test_a_hub_that_cannot_be_reached_or_sends_no_parts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_native(tmp_path / "model", index=False)
    with hub(folder, ranges=False) as (url, _):
        at(url, monkeypatch)
        assert f"does not send parts of {REPO}/consolidated.safetensors" in run("plan", REPO).err
    unreachable = run("plan", REPO)  # the server is gone
    assert unreachable.code == 1
    assert "could not be fetched from the Hub" in unreachable.err
    assert "Traceback" not in unreachable.err


def from_folder(folder: Path) -> Fetch:
    def fetch(name: str, span: tuple[int, int] | None) -> tuple[bytes, int] | None:
        if not (folder / name).is_file():
            return None
        content = (folder / name).read_bytes()
        return (content if span is None else content[span[0] : span[1] + 1]), len(content)

    return fetch


def test_headers_alone_make_the_same_plan_as_the_files(tmp_path: Path) -> None:
    folder, copy = write_native(tmp_path / "model", index=False), tmp_path / "copy"
    copy.mkdir()
    fetch_headers(REPO, copy, from_folder(folder))
    assert plan_load(copy).weights_bytes == plan_load(folder).weights_bytes
    assert (copy / "consolidated.safetensors").stat().st_size == (folder / "consolidated.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("consolidated.safetensors", b"<html>", "is no safetensors file"),
        ("consolidated.safetensors.index.json", b"{}", "names no weight files"),
        ("consolidated.safetensors.index.json", b'{"weight_map": {"a": "../b"}}', "names no weight files"),
        ("consolidated.safetensors.index.json", b'{"weight_map": {"a": "b.safetensors"}}', "lacks the weight file b"),
    ],
)
def test_what_is_no_checkpoint_is_told_by_its_file(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    folder, copy = write_native(tmp_path / "model", index=False), tmp_path / "copy"
    copy.mkdir()
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=reason):
        fetch_headers(REPO, copy, from_folder(folder))


def test_the_hub_is_asked_with_the_clients_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="could not be fetched from the Hub"):
        hub_fetch(REPO)("params.json", None)
