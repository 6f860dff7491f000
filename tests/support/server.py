"""An application behind a real socket, served from a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from sparkstral.api.connection import PatientConnection


@contextmanager
def served(app: FastAPI, http: type[PatientConnection] = PatientConnection) -> Iterator[str]:
    """Serves `app` on a free port while the block runs; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))  # connections wait here until the server is up
    server = uvicorn.Server(uvicorn.Config(app, http=http, log_level="error", lifespan="on"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()
