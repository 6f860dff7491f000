"""`sparkstral serve`: the HTTP server in this process, the engine in a child, and what is said while they start."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import math
import shlex
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import typer
import uvicorn

from sparkstral import logs
from sparkstral.api.app import create_app
from sparkstral.api.connection import PatientConnection
from sparkstral.api.door import is_loopback
from sparkstral.chat.tokenizer import ChatTokenizer
from sparkstral.cli import options
from sparkstral.cli.model_folder import with_model
from sparkstral.cli.progress import show_startup
from sparkstral.config import (
    DEFAULT_HOST,
    DEFAULT_MAX_BODY_BYTES,
    DEFAULT_MAX_IMAGES,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_MAX_SLOWDOWN,
    DEFAULT_PORT,
    DEFAULT_REQUEST_TIMEOUT_S,
    MAX_DRAFT_TOKENS,
    SERVED_MODEL_NAME,
    ServerConfig,
)
from sparkstral.engine.client import EngineClient
from sparkstral.engine.process import STOP_TIMEOUT_S, ProcessEngineClient
from sparkstral.errors import ConfigError, NotReadyError, SparkstralError
from sparkstral.types import EngineInfo

logger = logging.getLogger(__name__)

DRAIN_S = 10.0  # for answers that are nearly done; a supervisor's patience is usually longer


def serve(
    model: options.Model = "demo",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets the network in.")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(min=1, max=65535)] = DEFAULT_PORT,
    served_model_name: Annotated[str, typer.Option(help="The name in /v1/models.")] = SERVED_MODEL_NAME,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = DEFAULT_MAX_NUM_SEQS,
    max_num_batched_tokens: options.MaxNumBatchedTokens = DEFAULT_MAX_NUM_BATCHED_TOKENS,
    max_slowdown: options.MaxSlowdown = DEFAULT_MAX_SLOWDOWN,
    dense: options.DenseChoice = options.PrecisionName.bf16,
    kv: options.KvChoice = options.PrecisionName.bf16,
    prefill: options.PrefillChoice = options.PrefillName.w4a16,
    kv_memory: options.KvMemory = None,
    kv_dir: options.KvDir = None,
    kv_dir_size: options.KvDirSize = None,
    device: options.DeviceChoice = options.Device.auto,
    kernels: options.KernelsChoice = options.Kernels.auto,
    speculative: options.SpeculativeChoice = options.Speculative.auto,
    max_draft_tokens: options.MaxDraftTokens = MAX_DRAFT_TOKENS,
    threads: options.Threads = None,
    drain_s: Annotated[
        float, typer.Option(min=0, help="Seconds that answers under way have to end after SIGTERM or Ctrl-C.")
    ] = DRAIN_S,
    api_key: options.ApiKeys = None,
    api_key_file: options.ApiKeyFile = None,
    cors_origin: options.CorsOrigins = None,
    request_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that one answer may take, waiting included.")
    ] = DEFAULT_REQUEST_TIMEOUT_S,
    max_body: Annotated[str, typer.Option(help="Largest body of a request.")] = f"{DEFAULT_MAX_BODY_BYTES >> 20}MiB",
    no_vision: options.NoVision = False,
    max_images: Annotated[int, typer.Option(min=0, help="Images that one request may hold.")] = DEFAULT_MAX_IMAGES,
    allow_image_host: options.ImageHosts = None,
    strict_history: Annotated[
        bool, typer.Option("--strict-history", help="Refuse message lists that would have to be repaired.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON, one object a line.")] = False,
) -> None:
    """Serve MODEL to OpenAI clients. Without MODEL: the small demo, on any machine."""
    log_style: Literal["json", "text"] = "json" if as_json else "text"
    logs.configure(log_style)
    _listen(host, port).close()  # said before a download, which may take an hour
    engine_config = options.engine_config(
        Path(model),
        device=device,
        kernels=kernels,
        dense=dense,
        kv=kv,
        prefill=prefill,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_slowdown=max_slowdown,
        kv_memory=kv_memory,
        kv_dir=kv_dir,
        kv_dir_size=kv_dir_size,
        speculative=speculative,
        max_draft_tokens=max_draft_tokens,
        threads=threads,
        reads_images=not no_vision,
    )
    server_config = ServerConfig(
        host=host,
        port=port,
        served_model_name=served_model_name,
        max_body_bytes=options.parse_bytes(max_body, "--max-body"),
        request_timeout_s=request_timeout,
        api_keys=options.read_api_keys(api_key, api_key_file),
        cors_origins=options.check_origins(cors_origin),
        strict_history=strict_history,
        max_images=max_images,
        allowed_image_hosts=options.check_image_hosts(allow_image_host),
    )
    warn_of_open_doors(server_config)
    engine_config = with_model(replace(engine_config, port=port), model)  # after all that could be refused
    tokenizer = ChatTokenizer.load(engine_config.model_path)
    listener = _listen(host, port)
    client = ProcessEngineClient(engine_config, log_style)
    app = create_app(client, tokenizer, server_config)
    server = DrainingServer(
        uvicorn.Config(
            app,
            http=PatientConnection,
            lifespan="on",
            timeout_graceful_shutdown=math.ceil(drain_s + STOP_TIMEOUT_S) + 1,  # for clients that read nothing
            access_log=False,
            log_level="warning",
            log_config=None,  # logs.configure has seen to it
        ),
        client,
        drain_s,
    )
    asyncio.run(_serve(server, listener, client, server_config, as_json=as_json))


def warn_of_open_doors(config: ServerConfig) -> None:
    """Log what lets strangers use the server."""
    if not config.api_keys and not is_loopback(config.host):
        logger.warning(
            "ANYONE WHO REACHES %s:%d CAN USE THIS SERVER: it listens beyond this machine and asks for no key. "
            "Give it one with --api-key or --api-key-file, or keep it to this machine with --host 127.0.0.1.",
            config.host,
            config.port,
        )
    if not config.api_keys and "*" in config.cors_origins:
        logger.warning(
            "ANY WEB PAGE THAT SOMEONE OPENS HERE CAN USE THIS SERVER: --cors-origin '*' without a key. "
            "Name the origins, or give the server a key with --api-key-file."
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, TypeError, ValueError) as error:  # the latter two: no host could have that name
        reason = getattr(error, "strerror", None) or error
        if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
            other = port + 1 if port < 65535 else port - 1
            remedy = f"If another server runs there, stop it, or choose another port: --port {other}"
        else:
            remedy = "Give an address of this machine: --host 127.0.0.1, or 0.0.0.0 for all of them."
        raise ConfigError(f"Cannot listen on {host}:{port}: {reason}. {remedy}") from error
    if sys.platform == "linux":
        # What the application gives up, the kernel still tries to deliver; connections inherit this limit on that.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(ServerConfig().reader_timeout_s * 1000))
    return listener


class DrainingServer(uvicorn.Server):
    """A server whose answers end in words: none is cut off by its end.

    After a signal they have `drain_s` to be completed; those that have not by then, or at a second signal, are
    ended by the engine's stop, with the reason.
    """

    def __init__(self, config: uvicorn.Config, client: EngineClient, drain_s: float) -> None:
        super().__init__(config)
        self._client = client
        self._drain_s = drain_s
        self._is_urgent = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and not self._is_urgent:
            self._is_urgent = True
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = asyncio.create_task(self._end_answers())
        try:
            await super().shutdown(sockets)
        finally:
            draining.cancel()

    async def _end_answers(self) -> None:
        end_s = time.monotonic() + self._drain_s
        if self.server_state.tasks:
            num_answers = len(self.server_state.tasks)
            logger.info("stopping: %d answers have %g s to end; Ctrl-C ends them now", num_answers, self._drain_s)
        while not self._is_urgent and time.monotonic() < end_s:
            await asyncio.sleep(0.1)
        await self._client.stop()


async def _serve(
    server: uvicorn.Server,
    listener: socket.socket,
    client: ProcessEngineClient,
    config: ServerConfig,
    *,
    as_json: bool,
) -> None:
    """Run until a signal ends the server, or until the engine fails to start, which is raised."""
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    # Waiting for the engine polls in a thread, so that the door answers /health from the first moment on.
    starting = asyncio.create_task(asyncio.to_thread(show_startup, client, quiet=as_json))
    await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done() and not serving.done():
        try:
            starting.result()
        except SparkstralError:
            server.should_exit = True
            await serving
            raise
        _announce(client.info, config, as_json=as_json)
    await serving
    await client.stop()  # done already, unless the server itself could not start
    with suppress(NotReadyError):  # stopped while it was still starting: the signal is the reason
        await starting


def _announce(info: EngineInfo, config: ServerConfig, *, as_json: bool) -> None:
    """Say that it is ready, and how to try it: on standard error, or as one JSON object on standard output."""
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{config.port}"
    if as_json:
        ready: dict[str, Any] = {
            "url": url, "model": config.served_model_name, "max_model_len": info.max_model_len,
            "memory": None if info.memory is None else asdict(info.memory),
        }  # fmt: skip
        print(json.dumps(ready), flush=True)
        return
    body = json.dumps(
        {"model": config.served_model_name, "messages": [{"role": "user", "content": "Say hello."}]}
    )
    key = " -H \"Authorization: Bearer $KEY\"" if config.api_keys else ""
    command = f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    print(
        f"\n{config.served_model_name} is ready on {url} ({info.device}, {info.dtype}, "
        f"{info.max_model_len:,} tokens of context). Ctrl-C stops it. Try:\n\n  {command}\n",
        file=sys.stderr,
        flush=True,
    )
