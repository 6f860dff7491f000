"""`sparkstral status | stop | logs`: the server that runs on this machine, however it was started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import httpx
import typer
from prometheus_client.parser import text_string_to_metric_families

from sparkstral.cli import options, running
from sparkstral.config import DEFAULT_HOST, DEFAULT_PORT
from sparkstral.deploy.docker import CONTAINER
from sparkstral.deploy.systemd import UNIT
from sparkstral.errors import SparkstralError
from sparkstral.memory.holders import gpu_holders
from sparkstral.memory.probe import host_memory
from sparkstral.units import format_bytes, format_seconds

Url = Annotated[str, typer.Option(help="The server's address.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port that it listens on.")]
_TIMEOUT_S = 5.0
_POLL_S = 0.2
_ENOUGH = 0.8  # of what it held, back: the rest may have gone to others meanwhile
# Of /metrics, and how they are called here.
_COUNTS = {
    "sparkstral_requests_running": "running", "sparkstral_requests_waiting": "waiting",
    "sparkstral_kv_cache_usage_ratio": "kv_cache_usage", "sparkstral_prompt_tokens": "prompt_tokens",
    "sparkstral_generated_tokens": "generated_tokens", "sparkstral_requests_refused": "refused",
    "sparkstral_preemptions": "preemptions", "sparkstral_sick_requests": "sick_requests",
}  # fmt: skip


def status(
    url: Url = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}", as_json: options.AsJson = False
) -> None:
    """Say how the server is: starting with how long to go, ready with what it does, or why not. Exit code 0 only if it
    serves requests."""
    found = _ask(url.rstrip("/").removesuffix("/v1"))
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show(found)
    sys.exit(0 if found["ready"] else 1)


def _ask(url: str) -> dict[str, Any]:
    """Of /startupz, /readyz and /metrics. Raises SparkstralError where nobody answers."""
    try:
        with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
            startup, ready, metrics = client.get("/startupz"), client.get("/readyz"), client.get("/metrics")
        start, body = startup.json(), ready.json()
        counts = {
            _COUNTS[metric.name]: metric.samples[0].value
            for metric in text_string_to_metric_families(metrics.text)
            if metric.name in _COUNTS
        }
        return {
            "url": url,
            "ready": ready.status_code == 200,
            "phase": body["phase"],
            "progress": body["progress"],
            "detail": body["detail"],
            "phase_s": start["phase_s"],
            "eta_s": start["eta_s"],
            "info": body.get("info"),
            "memory": body.get("memory"),
            "counts": counts,
        }
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SparkstralError(
            f"No server answers on {url} ({error}). Start one with `sparkstral serve`; `sparkstral logs` may say why "
            "it ended; --url names another."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise SparkstralError(f"{url} answers, but it is no server of sparkstral's.") from None


def _show(found: dict[str, Any]) -> None:
    head = f"{found['phase']} for {format_seconds(found['phase_s'])}"
    if not found["ready"]:
        share = f", {found['progress']:.0%} done" if found["progress"] else ""
        left = f", about {format_seconds(found['eta_s'])} left" if found["eta_s"] else ""
        print(f"{head}{share}{left}. {found['detail']}".rstrip())
        return
    info, counts = found["info"], found["counts"]
    print(f"{head} on {found['url']}: {info['device']}, {info['dtype']}, {info['max_model_len']:,} tokens of context")
    print(
        f"{counts['running']:.0f} running, {counts['waiting']:.0f} waiting, KV cache {counts['kv_cache_usage']:.0%} in "
        f"use; {counts['prompt_tokens']:,.0f} tokens read, {counts['generated_tokens']:,.0f} written"
    )
    for name in ("refused", "preemptions", "sick_requests"):
        if counts.get(name):
            print(f"{name.replace('_', ' ')}: {counts[name]:.0f}")


def stop(
    port: Port = DEFAULT_PORT,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait, for its end and for the memory.")] = 120.0,
    as_json: options.AsJson = False,
) -> None:
    """End the server on PORT in good order (its answers have their time), and wait until its memory is back."""
    found = running.find_listener(port)
    if found is None:
        raise SparkstralError(_nobody(port))
    if "sparkstral" not in found.command:
        raise SparkstralError(
            f"Port {port} belongs to another program (pid {found.process_id}: {found.command[:80]}), which is left "
            "alone. If it is docker's, stop the container: docker stop sparkstral."
        )
    result = end(found.process_id, timeout)
    if as_json:
        print(json.dumps(result))
    else:
        back = f"{format_bytes(result['returned_bytes'])} of memory came back"
        print(f"Stopped pid {found.process_id} in {format_seconds(result['seconds'])}; {back}.")
        print(f"{format_bytes(result['available_bytes'])} are available now.")


def _nobody(port: int) -> str:
    if running.is_taken(port):
        return f"Whoever listens on port {port} is another user's: use sudo; of a container, docker stop {CONTAINER}."
    return f"Nobody listens on port {port}: there is nothing to stop. --port names another."


def end(
    process_id: int, timeout_s: float, available: Callable[[], int] = lambda: host_memory().num_bytes
) -> dict[str, Any]:
    """SIGTERM, then wait for the process, its children, and what they held. Raises SparkstralError if one of them does
    not come: a process is not killed, since whoever wants that can say so."""
    begin_s = time.monotonic()
    everyone = running.family(process_id)
    on_gpu = sum(holder.num_bytes for holder in gpu_holders() if holder.process_id in everyone)
    held, before = running.held_bytes(everyone) + on_gpu, available()
    try:
        os.kill(process_id, signal.SIGTERM)
    except PermissionError:
        raise SparkstralError(f"pid {process_id} is another user's: use sudo.") from None
    while left := running.alive(everyone):
        if time.monotonic() - begin_s > timeout_s:
            raise SparkstralError(
                f"{len(left)} processes still run after {timeout_s:g} s (pid {', '.join(map(str, left))}). Ask again, "
                f"or end them by force: kill -9 {' '.join(map(str, left))}"
            )
        time.sleep(_POLL_S)
    while (now := available()) - before < _ENOUGH * held:
        if time.monotonic() - begin_s > timeout_s:
            raise SparkstralError(
                f"The server has ended, but of {format_bytes(held)} that it held only "
                f"{format_bytes(max(0, now - before))} came back within {timeout_s:g} s. Something else took it, or "
                "the driver holds it: sparkstral plan --live names who; a restart of the machine frees it."
            )
        time.sleep(_POLL_S)
    return {
        "process_id": process_id,
        "seconds": round(time.monotonic() - begin_s, 1),
        "held_bytes": held,
        "returned_bytes": max(0, now - before),
        "available_bytes": now,
    }


def logs(
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    port: Port = DEFAULT_PORT,
) -> None:
    """Show the server's log, where it is kept: the journal of the unit, the container's, or the file that its standard
    error goes to. They are that program's own words; --json is a matter of `serve`."""
    command = log_command(lines, follow, port)
    sys.stdout.flush()
    os.execvp(command[0], command)


def log_command(lines: int, follow: bool, port: int) -> list[str]:
    """The command that shows it. Raises SparkstralError where it is kept nowhere."""
    more = ["--follow"] if follow else []
    for control in (["systemctl"], ["systemctl", "--user"]):
        if _output([*control, "is-enabled", UNIT]) or _output([*control, "is-active", UNIT]).startswith("active"):
            user = ["--user-unit" if "--user" in control else "--unit", UNIT]
            return ["journalctl", *user, "--lines", str(lines), "--no-pager", *more]
    if _output(["docker", "inspect", "--format", "{{.Id}}", CONTAINER]):
        return ["docker", "logs", "--tail", str(lines), *more, CONTAINER]
    found = running.find_listener(port)
    file = None if found is None else running.log_file(found.process_id)
    if file is not None:
        return ["tail", "-n", str(lines), *(["-F"] if follow else []), str(file)]
    where = f"pid {found.process_id} writes to a terminal or a pipe: look there" if found else "no server runs here"
    raise SparkstralError(
        f"There is no {UNIT}, no container {CONTAINER}, and {where}. Keep a log with sparkstral deploy systemd, or "
        "sparkstral serve 2> sparkstral.log"
    )


def _output(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
