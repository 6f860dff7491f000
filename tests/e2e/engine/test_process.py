"""The engine's process: its death is noticed and told, and it outlives nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sparkstral.config import EngineConfig
from sparkstral.engine.messages import STOPPED, FromEngine
from sparkstral.engine.process import ProcessEngineClient, describe_exit
from sparkstral.engine.supervision import Patience
from sparkstral.errors import NotReadyError
from sparkstral.types import EnginePhase, GenerationRequest, SamplingParams, TokenOutput
from tests.support.tiny_engine import tiny_config

LIMIT_S = 60.0  # for what takes milliseconds on a machine that is not busy
ENDLESS = SamplingParams(max_tokens=500, temperature=0, stop_token_ids=())


def is_gone(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE  # nobody may be there to bury it
    except psutil.NoSuchProcess:
        return True


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
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
        for outputs in await asyncio.wait_for(asyncio.gather(*readers), LIMIT_S):
            failure = outputs[-1].failure
            assert failure is not None
            assert failure.code == "engine_dead"
            assert "SIGKILL" in failure.message
            assert sum(output.is_last for output in outputs) == 1
        assert client.status().phase is EnginePhase.RESTARTING
        with pytest.raises(NotReadyError, match="SIGKILL"):
            await read("late")
        first_words = client.status().detail
        await asyncio.wait_for(client.stop(), LIMIT_S)  # in the pause before the next start
        assert "failure 1 of 3" in first_words
        assert client.status().detail == STOPPED

    asyncio.run(main())


def test_a_stopped_engine_is_noticed_ended_and_followed_by_another_until_it_is_given_up(tiny_model: Path):
    patience = Patience(stalled_s=1.5, wedged_s=2.5, first_delay_s=0.01, max_failures=2)

    async def main() -> None:
        client = ProcessEngineClient(tiny_config(tiny_model), patience=patience)
        await client.start()
        await client.wait_until_ready()
        outputs = client.generate(GenerationRequest("r", (1, 2, 3), ENDLESS))
        await anext(outputs)
        first = client.process_id
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        await until(lambda: client.status().phase is EnginePhase.STALLED)
        with pytest.raises(NotReadyError, match="no sign of life"):
            await anext(client.generate(GenerationRequest("late", (1, 2), ENDLESS)))
        last = [output async for output in outputs][-1]
        assert last.failure is not None
        assert "no sign of life" in last.failure.message
        assert is_gone(first)
        await until(lambda: client.status().phase is EnginePhase.READY)
        second = client.process_id
        assert second not in (None, first)
        short = replace(ENDLESS, max_tokens=3)
        again = [output async for output in client.generate(GenerationRequest("r", (1, 2), short))]
        assert again[-1].finish_reason is not None
        assert second is not None
        os.kill(second, signal.SIGKILL)
        await until(lambda: client.status().phase is EnginePhase.DEAD)
        assert "2 failures within 10 minutes" in client.status().detail
        assert "SIGKILL" in client.status().detail
        assert client.process_id is None
        await client.stop()

    asyncio.run(asyncio.wait_for(main(), 2 * LIMIT_S))


def test_stop_returns_when_the_process_is_gone_and_its_folder_is_gone_long_before(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def main() -> None:
        client = ProcessEngineClient(tiny_config(tiny_model))
        await client.start()
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o077 == 0
        await client.wait_until_ready()
        assert list(tmp_path.iterdir()) == []  # both sides are connected: a killed server leaves nothing
        process_id = client.process_id
        assert process_id is not None
        assert Path(f"/proc/{process_id}/oom_score_adj").read_text().strip() == "500"
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


@pytest.mark.parametrize("when", ["loading", "stopped"])
def test_an_engine_does_not_outlive_its_parent_nor_does_its_folder(tiny_model: Path, tmp_path: Path, when: str):
    parent_program = """
import asyncio, os, signal, sys
from pathlib import Path
from sparkstral.config import EngineConfig
from sparkstral.engine.process import ProcessEngineClient

async def main():
    client = ProcessEngineClient(EngineConfig(Path(sys.argv[1]), max_model_len=512, num_threads=1))
    await client.start()
    if sys.argv[2] != "loading":
        await client.wait_until_ready()
    if sys.argv[2] == "stopped":
        os.kill(client.process_id, signal.SIGSTOP)
    print(client.process_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    # Output goes to a file: the child inherits it, and a pipe would not end before the child does.
    parent = subprocess.run(
        [sys.executable, "-c", parent_program, str(tiny_model), when],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert parent.returncode == -signal.SIGKILL
    asyncio.run(asyncio.wait_for(until(lambda: is_gone(int(parent.stdout))), LIMIT_S))
    assert list(tmp_path.iterdir()) == []


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


class CountingClient(ProcessEngineClient):
    """Knows how many messages have come from the engine."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.num_heard = 0

    def _receive(self, message: FromEngine) -> None:
        self.num_heard += 1
        super()._receive(message)


def test_an_idle_engine_does_not_spin(tiny_model: Path):
    """A process that spins takes all of a core, on a busy machine too; ours may take a fiftieth."""

    def used_s(process: psutil.Process) -> float:
        times = process.cpu_times()
        return times.user + times.system

    async def main() -> None:
        client = CountingClient(tiny_config(tiny_model))
        await client.start()
        await client.wait_until_ready()
        short = replace(ENDLESS, max_tokens=3)
        async for _ in client.generate(GenerationRequest("r", (1, 2), short)):
            pass
        processes = psutil.Process(client.process_id), psutil.Process()
        before, begin, num_heard = [used_s(p) for p in processes], time.monotonic(), client.num_heard
        while client.num_heard < num_heard + 2:  # two heartbeats
            await asyncio.sleep(0.1)
        elapsed_s = time.monotonic() - begin
        for process, before_s in zip(processes, before, strict=True):
            assert used_s(process) - before_s < 0.02 * elapsed_s
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
