"""`sparkstral download`, and `serve HUB_ID`, against a Hub on this machine; the fault table's rows about the Hub."""

from __future__ import annotations

import errno
import io
import json
import shutil
import socket
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID
from sparkstral.cli.model_folder import fetch_shown, refuse_by_plan, resolve_model
from sparkstral.config import EngineConfig
from sparkstral.errors import CheckpointError, ConfigError
from sparkstral.hub.download import check_space, download, sha256_of
from sparkstral.hub.recorded import recorded_sha256
from sparkstral.hub.repository import PINNED_REVISIONS, look_up, revision_of
from tests.support.fake_hub import COMMIT, REPO, FakeHub, fake_hub, use_hub
from tests.support.tekken import write_tekken
from tests.support.tiny_checkpoint import write_native
from tests.unit.cli.conftest import Run


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository as the release is: native files, others beside them, no config.json."""
    folder = tmp_path_factory.mktemp("released")
    write_native(folder, shards=3)
    write_tekken(folder)
    (folder / "README.md").write_text("# A model\n")
    return folder


@pytest.fixture
def hub(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with fake_hub(released, monkeypatch, tmp_path / "cache") as hub:
        yield hub


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("consolidated-*.safetensors"))


def test_the_checkpoint_comes_whole_and_nothing_else(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    ended = run("download", REPO, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    folder = Path(found["folder"])
    assert folder.is_relative_to(tmp_path / "cache")
    assert found["revision"] == COMMIT
    assert {each["name"] for each in found["files"]} == {
        "params.json", "tekken.json", "consolidated.safetensors.index.json", *(path.name for path in shards(hub.folder))
    }  # fmt: skip
    assert found["not_needed"] == ["README.md"]
    assert "config.json" in found["lacking"]
    assert [each["is_hashed"] for each in found["files"]] == [bool(each["sha256"]) for each in found["files"]]
    for path in shards(hub.folder):
        assert (folder / path.name).read_bytes() == path.read_bytes()
        assert recorded_sha256(folder / path.name) == sha256_of(path)
    assert recorded_sha256(folder / "params.json") is None  # the Hub has a git hash of it, which is another
    assert resolve_model(REPO) == folder


def test_people_are_told_what_is_missing_and_not_missed(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    ended = run("download", REPO, "--folder", str(tmp_path / "mine"))
    assert ended.code == 0, ended.err
    assert f"{REPO} has no config.json" in ended.err
    assert "params.json says what the model is" in ended.err
    assert "3 hashes checked" in ended.out
    assert (tmp_path / "mine" / "tekken.json").is_file()
    assert recorded_sha256(shards(tmp_path / "mine")[0]) == sha256_of(shards(hub.folder)[0])


def test_a_terminal_gets_a_bar(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("sparkstral.cli.model_folder.Console", lambda stderr: console)
    folder = fetch_shown(look_up(REPO, "main"), tmp_path / "mine")
    assert len(shards(folder)) == 3
    assert "downloading" in screen.getvalue()
    assert not [thread for thread in threading.enumerate() if thread.name == "download bar"]


def test_what_is_there_is_not_sent_again(run: Run, hub: FakeHub) -> None:
    run("download", REPO, "--json")
    hub.requests.clear()
    again = json.loads(run("download", REPO, "--json").out)
    assert hub.names_sent() == []
    assert all(each["was_there"] and not each["is_hashed"] for each in again["files"])
    deep = json.loads(run("download", REPO, "--deep", "--json").out)
    assert sum(each["is_hashed"] for each in deep["files"]) == 3


@pytest.mark.parametrize("place", ["cache", "folder"])
def test_a_download_goes_on_where_it_stopped(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("sparkstral.hub.transfer._FIRST_PAUSE_S", 0)
    folder = tmp_path / "mine" if place == "folder" else None
    repository = look_up(REPO, "main")
    hub.break_off_after = 0
    with pytest.raises(CheckpointError, match="goes on where it stopped"):
        download(repository, folder)
    hub.break_off_after = 30_000  # of every answer: each shard needs several
    found = download(repository, folder)
    for path in shards(hub.folder):
        assert (found / path.name).read_bytes() == path.read_bytes()
    assert {wanted for _, path, wanted in hub.requests if path.endswith(".safetensors")} >= {"bytes=30000-"}
    assert not list(tmp_path.rglob("*.incomplete"))


def test_a_part_of_an_earlier_run_is_not_sent_again(hub: FakeHub, tmp_path: Path) -> None:
    repository = look_up(REPO, "main")
    file = next(file for file in repository.files if file.sha256)
    content = (hub.folder / file.name).read_bytes()
    part = tmp_path / "cache" / f"models--{REPO.replace('/', '--')}" / "blobs" / f"{file.sha256}.sparkstral.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(content[:1000])
    assert check_space(repository, None) == repository.num_bytes - 1000
    assert (download(repository) / file.name).read_bytes() == content
    assert ("GET", f"/{REPO}/resolve/{COMMIT}/{file.name}", "bytes=1000-") in hub.requests
    assert part.parent.joinpath(str(file.sha256)).is_file()


def test_a_wrong_hash_is_told_and_the_file_is_gone(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    hub.wrong_bytes_in = shards(hub.folder)[1].name
    ended = run("download", REPO, "--json")
    assert ended.code == 1
    assert f"{hub.wrong_bytes_in} came damaged: its sha256 is" in ended.err
    assert not list(tmp_path.glob(f"cache/*/snapshots/*/{hub.wrong_bytes_in}"))
    hub.wrong_bytes_in = None
    assert run("download", REPO, "--json").code == 0


def test_damage_on_this_disk_is_found_by_deep(run: Run, hub: FakeHub) -> None:
    folder = Path(json.loads(run("download", REPO, "--json").out)["folder"])
    shard = shards(folder)[0]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.resolve().write_bytes(content)
    assert run("download", REPO, "--json").code == 0
    assert run("download", REPO, "--deep", "--json").code == 1
    assert not shard.exists()


def test_the_token_is_sent(run: Run, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert run("download", REPO, "--json").code == 0
    assert hub.tokens == {"Bearer hf_secret"}


def test_the_released_model_has_a_pinned_revision() -> None:
    assert revision_of(EXAMPLE_HUB_ID, None) == PINNED_REVISIONS[EXAMPLE_HUB_ID]
    assert len(PINNED_REVISIONS[EXAMPLE_HUB_ID]) == 40
    assert revision_of(EXAMPLE_HUB_ID, "main") == "main"
    assert revision_of(REPO, None) == "main"


def test_a_pinned_revision_that_is_here_needs_no_hub(
    run: Run, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PINNED_REVISIONS, REPO, COMMIT)
    folder = Path(json.loads(run("download", REPO, "--json").out)["folder"])
    hub.requests.clear()
    assert resolve_model(REPO) == folder
    assert hub.requests == []


def test_a_hub_that_is_gone(
    run: Run, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(json.loads(run("download", REPO, "--json").out)["folder"])
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    use_hub(f"http://127.0.0.1:{port}", monkeypatch, tmp_path / "cache")
    assert resolve_model(REPO) == folder  # what was downloaded before
    ended = run("download", "owner/other")
    assert ended.code == 1
    assert ended.err.startswith("sparkstral: 'owner/other' could not be looked up on the Hub: ")
    assert "Check the network" in ended.err
    assert ended.err.count("\n") == 1


def test_offline_is_honoured(
    run: Run, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(json.loads(run("download", REPO, "--json").out)["folder"])
    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_model(REPO) == folder
    ended = run("download", "owner/other")
    assert (ended.code, hub.requests) == (1, [])
    assert "HF_HUB_OFFLINE is set" in ended.err


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("owner/hidden",), "no repository 'owner/hidden' that you may read"),
        ((REPO, "--revision", "old"), f"{REPO} on the Hub has no revision old"),
    ],
)
def test_what_the_hub_does_not_have(run: Run, hub: FakeHub, asked: tuple[str, ...], sentence: str) -> None:
    ended = run("download", *asked)
    assert ended.code == 1
    assert sentence in ended.err


def test_no_hub_id_is_a_usage_error(run: Run) -> None:
    assert run("download", "not-an-id").code == 2


def test_a_repository_without_tekken_is_refused_before_its_weights(
    run: Run, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(released, tmp_path / "bare", ignore=shutil.ignore_patterns("tekken.json"))
    with fake_hub(folder, monkeypatch, tmp_path / "cache") as hub:
        ended = run("download", REPO)
    assert ended.code == 1
    assert f"{REPO} on the Hub has no tekken.json" in ended.err
    assert hub.names_sent() == []


def test_a_disk_that_is_too_small_is_said_before(
    run: Run, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(2 << 30, 1 << 30, 1 << 30))
    ended = run("download", REPO)
    assert ended.code == 1
    assert "1.00 GiB free" in ended.err
    assert "HF_HUB_CACHE=DIR" in ended.err
    assert hub.names_sent() == []


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(errno.ENOSPC, "is full"), (errno.EROFS, "cannot be written (Read-only file system)")],
)
def test_a_disk_that_fails_on_the_way(
    run: Run, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, {errno.ENOSPC: "No space left", errno.EROFS: "Read-only file system"}[number])

    # Of small files, and of large ones.
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    monkeypatch.setattr("sparkstral.hub.transfer._settle", fail)
    ended = run("download", REPO, "--json")
    assert ended.code == 1
    assert sentence in ended.err
    assert "HF_HUB_CACHE=DIR" in ended.err
    assert ended.err.count("\n") == 1


def test_what_does_not_fit_is_not_downloaded(run: Run, hub: FakeHub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended = run("serve", REPO, "--device", "cpu", "--port", str(port), "--kv-memory", "4096GiB")
    assert ended.code == 1
    assert "--kv-memory asks for 4096.00 GiB" in ended.err
    assert "Nothing was downloaded" in ended.err
    assert all(wanted for method, path, wanted in hub.requests if method == "GET" and path.endswith(".safetensors"))
    assert resolve_model(REPO).is_dir()  # the check was of that start alone


def test_the_check_raises_what_a_start_would(tmp_path: Path) -> None:
    write_native(tmp_path / "model")
    with pytest.raises(ConfigError, match="the model has positions for"):
        refuse_by_plan(EngineConfig(Path("any"), device="cpu", max_model_len=10**9))(tmp_path / "model")


def test_a_damaged_listing_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        look_up("a" * 200 + "/x", "main")
