"""The engine's process: its death is noticed and told, and it outlives nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sparkstral.engine.messages import STOPPED
from sparkstral.engine.process import ProcessEngineClient, describe_exit
from sparkstral.errors import NotReadyError
from sparkstral.types import EnginePhase, GenerationRequest, SamplingParams, TokenOutput
from tests.support.tiny_engine import tiny_config

ENDLESS = SamplingParams(max_tokens=500, temperature=0, stop_token_ids=())


def is_gone(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE  # nobody may be there to bury it
    except psutil.NoSuchProcess:
        return True


async def until_gone(process_id: int, limit_s: float) -> None:
    begin = time.monotonic()
    while not is_gone(process_id):
        assert time.monotonic() - begin < limit_s, f"process {process_id} lives on"
        await asyncio.sleep(0.01)


def test_a_killed_engine_fails_its_requests_at_once_with_the_reason(tiny_model: Path):
    async def main() -> None:
        client = ProcessEngineClient(tiny_config(tiny_model))
        await client.start()
        await client.wait_until_ready()
        assert client.process_id is not None

        async def read(name: str) -> list[TokenOutput]:
            return [output async for output in client.generate(GenerationRequest(name, (1, 2, 3), ENDLESS))]

        readers = [asyncio.create_task(read(f"r{i}")) for i in range(4)]
        await asyncio.sleep(0)
        os.kill(client.process_id, signal.SIGKILL)
        begin = time.monotonic()
        for outputs in await asyncio.gather(*readers):
            failure = outputs[-1].failure
            assert failure is not None
            assert failure.code == "engine_dead"
            assert "SIGKILL" in failure.message
            assert sum(output.is_last for output in outputs) == 1
        assert time.monotonic() - begin < 2.0
        assert client.status().phase is EnginePhase.DEAD
        with pytest.raises(NotReadyError, match="SIGKILL"):
            await read("late")
        await client.stop()
        assert "SIGKILL" in client.status().detail

    asyncio.run(main())


def test_stop_returns_when_the_process_is_gone_and_its_folder_too(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def main() -> None:
        client = ProcessEngineClient(tiny_config(tiny_model))
        await client.start()
        await client.wait_until_ready()
        process_id = client.process_id
        assert process_id is not None
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o077 == 0
        await client.stop()
        assert is_gone(process_id)
        assert list(tmp_path.iterdir()) == []

    asyncio.run(main())


def test_an_engine_that_hears_nothing_is_stopped_all_the_same(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sparkstral.engine.process.STOP_TIMEOUT_S", 0.2)

    async def main() -> None:
        client = ProcessEngineClient(tiny_config(tiny_model))
        await client.start()
        await client.wait_until_ready()
        process_id = client.process_id
        assert process_id is not None
        os.kill(process_id, signal.SIGSTOP)
        await client.stop()
        assert is_gone(process_id)
        assert client.status().detail == STOPPED  # not a guess about who killed it

    asyncio.run(main())


def test_an_engine_does_not_outlive_its_parent(tiny_model: Path):
    parent_program = """
import asyncio, os, signal, sys
from pathlib import Path
from sparkstral.config import EngineConfig
from sparkstral.engine.process import ProcessEngineClient

async def main():
    client = ProcessEngineClient(EngineConfig(Path(sys.argv[1]), max_model_len=512, num_threads=1))
    await client.start()
    await client.wait_until_ready()
    print(client.process_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Output goes to a file: the child inherits it, and a pipe would not end before the child does.
    parent = subprocess.run(
        [sys.executable, "-c", parent_program, str(tiny_model)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert parent.returncode == -signal.SIGKILL
    asyncio.run(until_gone(int(parent.stdout), limit_s=5.0))


def test_signals_to_the_group_are_left_to_the_parent(tiny_model: Path):
    async def main() -> None:
        client = ProcessEngineClient(tiny_config(tiny_model))
        await client.start()
        await client.wait_until_ready()
        assert client.process_id is not None
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.process_id, signal_number)
        short = replace(ENDLESS, max_tokens=3)
        outputs = [output async for output in client.generate(GenerationRequest("r", (1, 2), short))]
        assert sum(len(output.new_token_ids) for output in outputs) == 3
        await client.stop()

    asyncio.run(main())


def test_an_idle_engine_takes_no_processor_time(tiny_model: Path):
    async def main() -> None:
        client = ProcessEngineClient(tiny_config(tiny_model))
        await client.start()
        await client.wait_until_ready()
        short = replace(ENDLESS, max_tokens=3)
        async for _ in client.generate(GenerationRequest("r", (1, 2), short)):
            pass
        process = psutil.Process(client.process_id)
        own = psutil.Process()
        before, own_before, begin = process.cpu_times(), own.cpu_times(), time.monotonic()
        await asyncio.sleep(2.0)  # two heartbeats
        after, own_after = process.cpu_times(), own.cpu_times()
        elapsed = time.monotonic() - begin
        used = after.user + after.system - before.user - before.system
        own_used = own_after.user + own_after.system - own_before.user - own_before.system
        assert used / elapsed < 0.05
        assert own_used / elapsed < 0.05
        await client.stop()

    asyncio.run(main())


def test_a_process_that_cannot_be_started_is_a_dead_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    async def main() -> None:
        client = ProcessEngineClient(tiny_config(tmp_path))
        await client.start()
        with pytest.raises(NotReadyError, match="/no/such/python"):
            await client.wait_until_ready()
        await client.stop()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(main())


def test_sockets_that_the_system_refuses_are_a_dead_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    too_long = tmp_path / ("x" * 120)  # a socket's path has 107 characters at most
    too_long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(too_long))

    async def main() -> None:
        client = ProcessEngineClient(tiny_config(tmp_path))
        await client.start()
        with pytest.raises(NotReadyError, match="could not be started"):
            await client.wait_until_ready()
        await client.stop()
        assert list(too_long.iterdir()) == []
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
        client = ProcessEngineClient(tiny_config(tmp_path))
        await client.start()
        with pytest.raises(NotReadyError, match="missing"):
            await client.wait_until_ready()

    asyncio.run(main())


def test_the_servers_process_needs_no_torch():
    program = "import sys, sparkstral.engine.process; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_exits_are_worded():
    assert "memory" in describe_exit(-signal.SIGKILL)
    assert "SIGSEGV" in describe_exit(-signal.SIGSEGV)
    assert "exit code 3" in describe_exit(3)
