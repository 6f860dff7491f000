"""The engine process: `python -m sparkstral.engine.child SETUP`, started by process.py.

Owns the child's side of the sockets and its bond to the parent: it lives no longer than the process that
holds the other end of its standard input.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import zmq

from sparkstral import logs
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.lifecycle import live
from sparkstral.engine.messages import FromEngine, Setup, decode_setup, decode_to_engine, encode

FLUSH_MS = 1_000  # for the last message; the parent reads at once if it is there


def main(setup: Setup) -> None:
    logs.configure(setup.log_style, setup.log_level)
    # Whoever signals the whole group means the server, which ends its engine in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()

    inbox = Inbox()
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.set_hwm(0)
    push.connect(setup.from_engine_address)
    threading.Thread(target=_listen, args=(context, setup.to_engine_address, inbox), name="listen", daemon=True).start()

    def send(message: FromEngine) -> None:
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


def _end_with_parent() -> None:
    """Nothing is ever written to this pipe: a read returns when the parent is gone."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main(decode_setup(sys.argv[1]))
