"""Flags, exit codes and the sentences of mistakes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sparkstral.cli.model_folder import resolve_model
from sparkstral.cli.options import check_image_hosts, parse_bytes
from sparkstral.errors import CheckpointError, ConfigError
from tests.support.tekken import write_tekken
from tests.support.tiny_checkpoint import write_native
from tests.unit.cli.conftest import Run


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("8GiB", 8 << 30), ("8G", 8 << 30), ("8gb", 8 * 10**9), ("512 MiB", 512 << 20), ("1.5KiB", 1536), ("7", 7)],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_bytes(text, "--kv-memory") == num_bytes


@pytest.mark.parametrize("text", ["", "eight", "8 Gib it", "-1GiB", "0x10", "1e9"])
def test_what_is_no_size_names_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--kv-memory.*is not a size"):
        parse_bytes(text, "--kv-memory")


@pytest.mark.parametrize("host", ["http://example.com", "example.com/a", "a b", "*.", "exa*mple.com", ""])
def test_what_is_no_host_names_the_flag(host: str) -> None:
    with pytest.raises(ConfigError, match=r"--allow-image-host .* is no name of a host"):
        check_image_hosts([host])


def test_hosts_whose_images_may_be_fetched() -> None:
    assert check_image_hosts(["*", "*.example.com", "a-b.example.com"]) == ("*", "*.example.com", "a-b.example.com")
    assert check_image_hosts(None) == ()


def test_an_unknown_flag_names_the_nearest(run: Run) -> None:
    ended = run("serve", "--prot", "8003")
    assert ended.code == 2
    assert "--port" in ended.err


def test_an_unknown_command_is_a_usage_error(run: Run) -> None:
    assert run("serv").code == 2


def test_help_is_no_failure(run: Run) -> None:
    ended = run("--help")
    assert ended.code == 0
    assert all(command in ended.out for command in ("serve", "chat", "eval", "inspect"))


def test_a_model_that_is_nowhere_says_what_to_give(run: Run) -> None:
    ended = run("inspect", "checkpoint", "no such folder")
    assert ended.code == 1
    assert "Give the folder of a checkpoint" in ended.err
    assert "Traceback" not in ended.err


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "consolidated.safetensors"
    file.touch()
    with pytest.raises(CheckpointError, match="name the folder"):
        resolve_model(str(file))


def test_a_port_in_use_is_said_before_anything_is_loaded(run: Run, tmp_path: Path) -> None:
    write_tekken(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("serve", str(tmp_path), "--port", str(port))
    assert ended.code == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in ended.err


def test_inspect_checkpoint_counts_without_loading(run: Run, tmp_path: Path) -> None:
    write_native(tmp_path)
    table = run("inspect", "checkpoint", str(tmp_path))
    as_json = run("inspect", "checkpoint", str(tmp_path), "--json")
    assert table.code == as_json.code == 0
    assert "routed experts" in table.out
    assert '"num_parameters"' in as_json.out


def test_inspect_tokens_tells_text_from_control_tokens(run: Run, tmp_path: Path) -> None:
    write_tekken(tmp_path)
    ended = run("inspect", "tokens", "--model", str(tmp_path), "[INST]", "--json")
    assert ended.code == 0
    assert '"count": 1,' not in ended.out  # spelled out, it is text


def test_inspect_tokens_shows_the_prompt_of_a_request(run: Run, tmp_path: Path) -> None:
    write_tekken(tmp_path)
    request = tmp_path / "request.json"
    request.write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    ended = run("inspect", "tokens", "--model", str(tmp_path), "--request", str(request), "--json")
    assert ended.code == 0
    assert '"[INST]"' in ended.out


def test_a_bad_request_file_names_the_field(run: Run, tmp_path: Path) -> None:
    write_tekken(tmp_path)
    request = tmp_path / "request.json"
    request.write_text('{"messages": []}')
    ended = run("inspect", "tokens", "--model", str(tmp_path), "--request", str(request))
    assert ended.code == 1
    assert "messages" in ended.err


def test_the_version_is_told(run: Run) -> None:
    ended = run("--version")
    assert ended.code == 0
    assert ended.out.startswith("sparkstral 0.")
