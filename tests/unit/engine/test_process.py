"""The parent's side of a child's end, with the child's part played by the test."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from sparkstral.engine.messages import FromEngine, StatusChanged, encode
from sparkstral.engine.process import EngineProcess
from sparkstral.types import EnginePhase, EngineStatus

DEAD = StatusChanged(EngineStatus(EnginePhase.DEAD, detail="The GPU is gone."))


class EndedChild:
    """A process that is gone; what it sent arrives when the test says."""

    def __init__(self, return_code: int) -> None:
        self.return_code = return_code
        self.words: asyncio.Queue[bytes] = asyncio.Queue()

    async def wait(self) -> int:
        return self.return_code

    def kill(self) -> None:
        raise ProcessLookupError

    async def recv(self) -> bytes:
        return await self.words.get()

    def close(self, linger: int) -> None:
        pass


def listener(child: EndedChild, monkeypatch: pytest.MonkeyPatch) -> tuple[EngineProcess, list[FromEngine]]:
    heard: list[FromEngine] = []
    process = EngineProcess(heard.append)
    process._pull.close()
    stand_in: Any = child
    monkeypatch.setattr(process, "_process", stand_in)
    monkeypatch.setattr(process, "_pull", stand_in)
    return process, heard


def test_why_a_child_ended_is_heard_though_it_arrives_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        child = EndedChild(0)
        process, heard = listener(child, monkeypatch)
        waiting = asyncio.create_task(process.wait())
        done, _ = await asyncio.wait([waiting], timeout=0.2)  # a busy machine
        assert not done
        child.words.put_nowait(encode(DEAD))
        assert "exit code 0" in await waiting
        assert heard == [DEAD]

    asyncio.run(main())


@pytest.mark.parametrize("return_code", [1, -signal.SIGKILL])
def test_a_child_that_says_nothing_is_not_waited_for_for_ever(
    return_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        process, heard = listener(EndedChild(return_code), monkeypatch)
        assert await asyncio.wait_for(process.wait(), 30)
        assert heard == []

    asyncio.run(main())


def test_a_child_that_cannot_be_understood_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        child = EndedChild(-signal.SIGKILL)
        child.words.put_nowait(b"no message")
        process, heard = listener(child, monkeypatch)
        assert "SIGKILL" in await asyncio.wait_for(process.wait(), 30)
        assert heard == []

    asyncio.run(main())
