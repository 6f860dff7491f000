"""The engine in a process of its own: what kills it does not kill the server.

Owns the child process, the two sockets and the news of its end; child.py is the other side. The sockets lie
in a folder that only this user can enter. Must not import the tensor world: the server's process does without
it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import zmq
import zmq.asyncio

import sparkstral
from sparkstral.config import EngineConfig
from sparkstral.engine.line_client import LineClient
from sparkstral.engine.messages import (
    STOPPED,
    FromEngine,
    Setup,
    Shutdown,
    StatusChanged,
    ToEngine,
    decode_from_engine,
    encode,
    encode_setup,
)
from sparkstral.types import EnginePhase, EngineStatus

logger = logging.getLogger(__name__)

CHILD_MODULE = "sparkstral.engine.child"
STOP_TIMEOUT_S = 10.0  # on a CPU a step of a large prompt takes seconds; what takes longer is ended by force
LAST_WORDS_S = 1.0  # at most, for why a child has ended: it was sent before, but this process may be busy
LAST_TOKENS_S = 0.1  # for what a child that was ended by a signal had sent: it had no time to say why


class ProcessEngineClient(LineClient):
    """An `EngineClient`; see there."""

    def __init__(
        self, config: EngineConfig, log_style: Literal["text", "json"] = "text", log_level: str = "INFO"
    ) -> None:
        super().__init__()
        self._config = config
        self._log_style = log_style
        self._log_level = log_level
        self._child: EngineProcess | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        child = EngineProcess(self._receive)
        try:
            await child.spawn(self._config, self._log_style, self._log_level)
        except (OSError, zmq.ZMQError) as error:
            child.close()
            reason = f"The engine process could not be started: {error}."
            self._set_status(EngineStatus(EnginePhase.DEAD, detail=reason))
            return
        self._child = child
        self._watching = asyncio.create_task(self._watch(child))

    async def stop(self) -> None:
        self._set_status(EngineStatus(EnginePhase.DRAINING))
        if self._child is not None and self._watching is not None:
            # A child that does not hear yet is still importing; there is nothing to end in good order.
            if not self._child.send(Shutdown()):
                self._child.kill()
            await asyncio.wait([self._watching], timeout=STOP_TIMEOUT_S)
            self._child.kill()
            await self._watching
        self._set_status(EngineStatus(EnginePhase.DEAD, detail=STOPPED))

    @property
    def process_id(self) -> int | None:
        """The child's process id, for those who watch it from outside."""
        return None if self._child is None else self._child.process_id

    def _send(self, message: ToEngine) -> None:
        if self._child is not None:
            self._child.send(message)

    async def _watch(self, child: EngineProcess) -> None:
        """Until the child is gone; then whatever still waits for it is told."""
        reason = await child.wait()
        if self._status.phase is EnginePhase.DRAINING:
            reason = STOPPED  # perhaps by force, and by us
        self._set_status(EngineStatus(EnginePhase.DEAD, detail=reason))


class EngineProcess:
    """One child, from its birth to its end; it is not used again."""

    def __init__(self, receive: Callable[[FromEngine], None]) -> None:
        self._receive = receive
        self._folder: Path | None = None
        self._context = zmq.Context()
        # Unbounded, so that sending never waits: requests are small, and outputs are read as they come.
        self._push = self._context.socket(zmq.PUSH)
        self._push.set_hwm(0)
        self._pull = zmq.asyncio.Socket(self._context, zmq.PULL)
        self._pull.set_hwm(0)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process_id(self) -> int:
        return self._require_process().pid

    async def spawn(self, config: EngineConfig, log_style: Literal["text", "json"], log_level: str) -> None:
        """Start the child, with an interpreter of its own: a fork would inherit threads and sockets.

        Raises OSError or zmq.ZMQError if the system refuses (no space for the sockets' folder, a path too long for
        them, no such interpreter); then `close` it.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="sparkstral-"))  # mode 0700
        to_engine, from_engine = (f"ipc://{self._folder / name}" for name in ("to-engine", "from-engine"))
        self._push.bind(to_engine)
        self._pull.bind(from_engine)
        setup = Setup(config, to_engine, from_engine, log_style, log_level)
        package_root = str(Path(sparkstral.__file__).parents[1])
        search_path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
        # Threads that spin while they wait for each other take the cores from the server and from each other:
        # with both of two cores busy elsewhere, 2 tok/s became 69 (measured 2026-12-02 on a model of the
        # demo's size).
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": search_path}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            CHILD_MODULE,
            encode_setup(setup),
            # The child ends when this pipe does, and the kernel closes it however this process ends.
            stdin=asyncio.subprocess.PIPE,
            env=environment,
        )

    def send(self, message: ToEngine) -> bool:
        """Send without waiting; False if no child listens, not yet or no longer."""
        if self._push.closed:
            return False
        try:
            self._push.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._require_process().kill()

    async def wait(self) -> str:
        """Pass on what the child says until it is gone; why it ended, in a sentence. Closes itself."""
        listening = asyncio.create_task(self._listen())
        ended = asyncio.create_task(self._require_process().wait())
        await asyncio.wait([listening, ended], return_when=asyncio.FIRST_COMPLETED)
        if listening.done() and (error := listening.exception()) is not None:
            logger.error("the engine process cannot be understood", exc_info=error)
            self.kill()
        return_code = await ended
        await asyncio.wait([listening], timeout=LAST_TOKENS_S if return_code < 0 else LAST_WORDS_S)
        listening.cancel()
        self.close()
        return describe_exit(return_code)

    def close(self) -> None:
        """Give back what this side holds; the child is gone, or never was."""
        self._push.close(linger=0)
        self._pull.close(linger=0)
        self._context.term()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _listen(self) -> None:
        """Pass on all messages, up to the one after which nothing follows."""
        while True:
            message = decode_from_engine(await self._pull.recv())
            self._receive(message)
            if isinstance(message, StatusChanged) and message.status.phase is EnginePhase.DEAD:
                return

    def _require_process(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the child was not spawned")
        return self._process


def describe_exit(return_code: int) -> str:
    """What an exit status says, for people. Negative: the signal that ended it."""
    if return_code == -signal.SIGKILL:
        return (
            "The engine process was killed (SIGKILL). If nobody did that, the system ran out of memory: the "
            "kernel's log (dmesg) says so. Restart with less, for instance a smaller --max-model-len."
        )
    if return_code < 0:
        return f"The engine process was ended by {signal.Signals(-return_code).name}; see its log."
    return f"The engine process ended with exit code {return_code}; see its log."
