"""The engine in a process of its own: what kills it does not kill the server.

Owns the child process, the two sockets, the news of its end and its successor's start; child.py is the other side.
The sockets lie in a folder that only this user can enter, and only until both sides are connected. Must not import
the tensor world: the server's process does without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
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
    ShrinkCaches,
    Shutdown,
    StatusChanged,
    ToEngine,
    decode_from_engine,
    encode,
    encode_setup,
)
from sparkstral.engine.supervision import DEFAULT_PATIENCE, Patience, Pulse, Restarts
from sparkstral.memory.pressure import PressureGuard, Stage, host_guard
from sparkstral.types import EnginePhase, EngineStatus, MemoryPressure

logger = logging.getLogger(__name__)

CHILD_MODULE = "sparkstral.engine.child"
TICK_S = 0.5  # how often the engine's pulse is felt; twice a heartbeat, and nothing in CPU time
STOP_TIMEOUT_S = 10.0  # on a CPU a step of a large prompt takes seconds; what takes longer is ended by force
LAST_WORDS_S = 1.0  # at most, for why a child has ended: it was sent before, but this process may be busy
END_TIMEOUT_S = 3.0  # when memory is short: what has not ended by then is ended by force
LAST_TOKENS_S = 0.1  # for what a child that was ended by a signal had sent: it had no time to say why


class ProcessEngineClient(LineClient):
    """An `EngineClient`; see there.

    An engine that dies after it was ready is followed by another, with pauses that grow, until there were too many
    failures in a short time; one that says nothing any more is ended, which is such a failure.
    """

    def __init__(
        self,
        config: EngineConfig,
        log_style: Literal["text", "json"] = "text",
        log_level: str = "INFO",
        patience: Patience = DEFAULT_PATIENCE,
        guard: PressureGuard | None = None,
    ) -> None:
        """`guard` watches the host's memory; None: by /proc, where there is one."""
        super().__init__()
        self._config = config
        self._log_style = log_style
        self._log_level = log_level
        self._patience = patience
        self._restarts = Restarts(patience)
        self._child: EngineProcess | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._pulse = Pulse(2 * TICK_S)
        self._guard = guard or host_guard()
        self._last_words: EngineStatus | None = None  # of the child, or about it
        self._delay_s = 0.0  # before the next start

    async def start(self) -> None:
        failure = await self._spawn()
        if failure is not None:
            self._set_status(failure)
        else:
            self._supervising = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        self._set_status(EngineStatus(EnginePhase.DRAINING))
        self._stopping.set()
        if self._supervising is not None:
            # A child that does not hear yet is still importing; there is nothing to end in good order.
            if self._child is not None and not self._child.send(Shutdown()):
                self._child.kill()
            await asyncio.wait([self._supervising], timeout=STOP_TIMEOUT_S)
            if self._child is not None:
                self._child.kill()
            await self._supervising
        self._set_status(EngineStatus(EnginePhase.DEAD, detail=STOPPED))

    @property
    def process_id(self) -> int | None:
        return None if self._child is None else self._child.process_id

    def memory_pressure(self) -> MemoryPressure | None:
        return None if self._guard is None else self._guard.report()

    def _send(self, message: ToEngine) -> None:
        if self._child is not None:
            self._child.send(message)

    def _receive(self, message: FromEngine) -> None:
        self._pulse.beat()
        if isinstance(message, StatusChanged) and message.status.phase is EnginePhase.DEAD:
            self._last_words = self._last_words or message.status  # what follows from it is decided when it is gone
            return
        if self._status.phase is EnginePhase.STALLED:
            logger.warning("the engine goes on")
            self._set_status(EngineStatus(EnginePhase.READY, 1.0))
        super()._receive(message)

    async def _spawn(self) -> EngineStatus | None:
        """Start a child; if that cannot be done, the status with the reason."""
        self._last_words = None
        self._pulse.beat()
        child = EngineProcess(self._receive)
        try:
            await child.spawn(self._config, self._log_style, self._log_level)
        except (OSError, zmq.ZMQError) as error:
            child.close()
            return EngineStatus(EnginePhase.DEAD, detail=f"The engine process could not be started: {error}.")
        self._child = child
        return None

    async def _supervise(self) -> None:
        """From child to child, until one is not followed by another."""
        failure: EngineStatus | None = None
        while True:
            if failure is None:
                failure = await self._outlive_child()
            if self._stopping.is_set():
                self._set_status(EngineStatus(EnginePhase.DEAD, detail=STOPPED))  # perhaps by force, and by us
                return
            failure = self._after(failure)
            self._set_status(failure)
            if failure.phase is EnginePhase.DEAD:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._delay_s)
            if not self._stopping.is_set():
                failure = await self._spawn()
                if failure is None:
                    self._set_status(EngineStatus(EnginePhase.STARTING))

    def _after(self, failure: EngineStatus) -> EngineStatus:
        """What follows from the failure: another start after `_delay_s`, or the end."""
        if self._info is None or failure.is_usage_error:  # what did not work once is left to whoever started it
            return failure
        delay_s, num_failures = self._restarts.delay_after_failure(time.monotonic()), self._restarts.num_recent
        patience = self._patience
        if delay_s is None:
            window = f"{num_failures} failures within {patience.window_s / 60:g} minutes"
            return replace(failure, detail=f"{failure.detail} This was the last of {window}, so it is not tried again.")
        self._delay_s = delay_s
        detail = f"{failure.detail} It is started again in {delay_s:g} s (failure {num_failures} of "
        return EngineStatus(EnginePhase.RESTARTING, detail=f"{detail}{patience.max_failures} that are borne).")

    async def _outlive_child(self) -> EngineStatus:
        """Watch the child until it is gone; why it went."""
        child = self._child
        assert child is not None  # it was spawned
        watching = asyncio.create_task(self._watch(child))
        try:
            reason = await child.wait()
        finally:
            watching.cancel()
        self._child = None
        return self._last_words or EngineStatus(EnginePhase.DEAD, detail=reason)

    async def _watch(self, child: EngineProcess) -> None:
        """Its pulse and the host's memory, until one of them ends it."""
        patience = self._patience
        while True:
            await asyncio.sleep(TICK_S)
            if self._guard is not None and not self._heed_memory(child, self._guard):
                await asyncio.sleep(END_TIMEOUT_S)
                child.kill()
                return
            silent_s = self._pulse.tick(time.monotonic())
            phase = self._status.phase
            is_up = phase in (EnginePhase.READY, EnginePhase.SHORT_OF_MEMORY, EnginePhase.STALLED)
            if silent_s >= (patience.wedged_s if is_up else patience.silent_start_s):
                where = f"after step {self._stats.step}" if is_up else f"while it was {phase}"
                detail = f"The engine gave no sign of life for {silent_s:.0f} s {where}, and was ended."
                self._last_words = EngineStatus(EnginePhase.DEAD, detail=detail)
                child.kill()
                return
            if is_up and silent_s >= patience.stalled_s:
                if phase is not EnginePhase.STALLED:
                    logger.warning("no sign of life from the engine for %.0f s", silent_s)
                detail = f"no sign of life for {silent_s:.0f} s; it is ended after {patience.wedged_s:g} s"
                self._set_status(EngineStatus(EnginePhase.STALLED, detail=detail))


    def _heed_memory(self, child: EngineProcess, guard: PressureGuard) -> bool:
        """Do what the host's memory asks for; False if the engine is to end, which it was told."""
        before, stage = guard.stage, guard.tick()
        if stage is Stage.END:
            logger.error("%s", guard.sentence())
            self._last_words = self._last_words or EngineStatus(EnginePhase.DEAD, detail=guard.sentence())
            if not child.send(Shutdown()):
                child.kill()
            return False
        if stage > before:
            logger.warning("memory is short on this host: %s", guard.report())
            child.send(ShrinkCaches())
        phase = self._status.phase
        if stage >= Stage.REFUSE and phase is EnginePhase.READY:
            self._set_status(EngineStatus(EnginePhase.SHORT_OF_MEMORY, 1.0, guard.sentence()))
        elif stage < Stage.REFUSE and phase is EnginePhase.SHORT_OF_MEMORY:
            logger.warning("memory is there again: requests are taken")
            self._set_status(EngineStatus(EnginePhase.READY, 1.0))
        return True


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
        self._remove_folder()

    def _remove_folder(self) -> None:
        """Connected sockets need their names no more, and so nothing is left if this process is killed."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _listen(self) -> None:
        """Pass on all messages, up to the one after which nothing follows."""
        while True:
            message = decode_from_engine(await self._pull.recv())
            if self._folder is not None and self._push.poll(0, zmq.POLLOUT):
                self._remove_folder()
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
