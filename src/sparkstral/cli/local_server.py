"""A server of this process' own, for commands that need a model and no running server has it.

The same application as `serve` runs, on a free port of the loopback address. Its engine is a process too: in a thread
of this one it would share the interpreter lock with the server, and inherit OpenMP threads that spin.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn

from sparkstral.api.app import create_app
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.cli.progress import show_startup
from sparkstral.config import EngineConfig, ServerConfig
from sparkstral.engine.process import ProcessEngineClient


@contextmanager
def local_server(config: EngineConfig) -> Iterator[str]:
    """Serve `config` on a free port while the block runs; yields the URL once the engine is ready.

    Raises CheckpointError, ConfigError and NotReadyError as the engine does.
    """
    tokenizer = ChatTokenizer.load(config.model_path)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    client = ProcessEngineClient(replace(config, port=port))
    app = create_app(client, tokenizer, ServerConfig())
    url = f"http://127.0.0.1:{port}"
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), name="local-server", daemon=True
    )
    thread.start()
    try:
        show_startup(client)
        yield url
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
