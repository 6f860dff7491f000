"""The engine process: `python -m sparkstral.engine.child SETUP`, started by process.py.

Owns the child's side of the sockets and its bond to the parent: it lives no longer than the process that
holds the other end of its standard input. Two things see to that: a thread that reads there, which also removes the
sockets' folder, and, once the engine is ready, the kernel, since a thread hears nothing while a library that hangs
holds the interpreter, or while this process is stopped.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import zmq

from sparkstral import logs
from sparkstral.engine.host_process import prefer_as_victim
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.lifecycle import live
from sparkstral.engine.messages import FromEngine, Ready, Setup, decode_setup, decode_to_engine, encode

PR_SET_PDEATHSIG = 1  # prctl(2)
FLUSH_MS = 1_000  # for the last message; the parent reads at once if it is there


def main(setup: Setup) -> None:
    logs.configure(setup.log_style, setup.log_level)
    prefer_as_victim()
    # Whoever signals the whole group means the server, which ends its engine in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder = Path(setup.to_engine_address.removeprefix("ipc://")).parent
    threading.Thread(target=_end_with_parent, args=(folder,), name="parent", daemon=True).start()

    inbox = Inbox()
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.set_hwm(0)
    push.connect(setup.from_engine_address)
    threading.Thread(target=_listen, args=(context, setup.to_engine_address, inbox), name="listen", daemon=True).start()

    def send(message: FromEngine) -> None:
        if isinstance(message, Ready) and sys.platform == "linux":
            # The parent's thread that started us is the one that runs its event loop, so it lives as long as we matter.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        push.send(encode(message))

    live(setup.config, inbox, send)
    push.close(linger=FLUSH_MS)
    context.term()


def _listen(context: zmq.Context[zmq.Socket[bytes]], address: str, inbox: Inbox) -> None:
    with context.socket(zmq.PULL) as pull:
        pull.set_hwm(0)
        pull.linger = 0
        pull.connect(address)
        while True:
            try:
                data = pull.recv()
            except zmq.ContextTerminated:
                return
            inbox.put(decode_to_engine(data))


def _end_with_parent(folder: Path) -> None:
    """Nothing is ever written to this pipe: a read returns when the parent is gone."""
    os.read(sys.stdin.fileno(), 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(decode_setup(sys.argv[1]))
