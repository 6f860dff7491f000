"""`sparkstral bench serve | soak`: load on a server, ours or another's; flags, tables, files, exit codes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkstral.bench import serve as serving
from sparkstral.bench import soak as soaking
from sparkstral.bench.plot import distribution_svg
from sparkstral.cli import options
from sparkstral.cli.local_server import local_server
from sparkstral.cli.measured import print_json
from sparkstral.cli.model_folder import resolve_model
from sparkstral.cli.tables import draw
from sparkstral.config import DEFAULT_MAX_SLOWDOWN
from sparkstral.errors import ConfigError
from sparkstral.units import GiB

Url = Annotated[str | None, typer.Option(help="A server that runs, with or without /v1. Default: our own, of MODEL.")]
ApiKey = Annotated[str | None, typer.Option(help="Sent as a bearer token.", envvar="OPENAI_API_KEY")]
Output = Annotated[Path | None, typer.Option(help="A file for the JSON.")]
SOAK_KV_BYTES = GiB // 16  # of the demo: 8,700 tokens. Thirty-two clients want more, so requests are preempted


@contextmanager
def _server(url: str | None, config: Callable[[], Any]) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with local_server(config()) as own:
        yield own


def _say(line: str) -> None:
    print(f"sparkstral: {line}", file=sys.stderr, flush=True)


def _shown(value: float | None, unit: str = "ms") -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:,.1f}" if unit == "ms" else f"{value:,.2f}"


def serve(
    model: options.Model = "demo",
    url: Url = None,
    api_key: ApiKey = None,
    shape: Annotated[str, typer.Option(help="Tokens of prompt/answer of each request.")] = "1024/128",
    clients: Annotated[int, typer.Option(min=1, help="Who ask when they have their answer (closed loop).")] = 8,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests a second instead (open loop).")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="In which requests are sent.")] = 30,
    disturb_tokens: Annotated[
        int | None, typer.Option(min=2, help="Then the same beside prompts of so many tokens.")
    ] = None,
    disturb_every: Annotated[float, typer.Option(min=0, help="Seconds from one such prompt to the next.")] = 4.0,
    goal_ttft_s: Annotated[float, typer.Option(help="A request within both goals counts as goodput.")] = 5.0,
    goal_itl_s: Annotated[float, typer.Option(help="The same for its mean time between tokens.")] = 0.1,
    seed: int = 0,
    device: options.DeviceChoice = options.Device.auto,
    max_slowdown: options.MaxSlowdown = DEFAULT_MAX_SLOWDOWN,
    output: Output = None,
    plot: Annotated[Path | None, typer.Option(help="A file for the curves, as SVG.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Put load on an OpenAI server and measure what its clients have of it: time to the first token, between tokens,
    to the end, and goodput. Exit code 1 if a request failed."""
    load = serving.Load(
        *parse_shape(shape), clients=clients, rate=rate, seconds=seconds, disturb_tokens=disturb_tokens,
        disturb_every_s=disturb_every, goal_ttft_s=goal_ttft_s, goal_itl_s=goal_itl_s, seed=seed,
    )  # fmt: skip

    def config() -> Any:
        return options.engine_config(resolve_model(model), device=device, max_slowdown=max_slowdown)

    with _server(url, config) as address:
        document, answers = asyncio.run(serving.run(address, load, api_key, _say))
    if output is not None:
        output.write_text(json.dumps(document, indent=1))
    if plot is not None:
        curves = {f"{part}: time between tokens": [g for a in of for g in a.itl_s] for part, of in answers.items()}
        curves |= {f"{part}: to the first token": [t for a in of if (t := a.ttft_s)] for part, of in answers.items()}
        plot.write_text(distribution_svg(f"{document['model']}: {shape} tokens", "s", curves))
    if as_json:
        print_json(document)
    else:
        _print_serve(document)
    sys.exit(1 if any(part["num_failed"] for part in document["parts"].values()) else 0)


def parse_shape(text: str) -> tuple[int, int]:
    """Tokens of prompt and answer. Raises ConfigError for what is not two positive numbers with a slash between."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--shape is {text!r}; write the tokens of prompt and answer, for example 1024/128.")
    return int(parts[0]), int(parts[1])


def _print_serve(document: dict[str, Any]) -> None:
    for part, found in document["parts"].items():
        rows = []
        for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
            values = found[name] or {}
            rows.append([name[:-2], *(_shown(values.get(p)) for p in ("mean", "p50", "p90", "p95", "p99", "max")), ""])
        title = (
            f"{part}: {found['num_requests']} requests, {found['num_failed']} failed; "
            f"{found['output_tokens_per_s']:.1f} tok/s, {found['requests_per_s']:.2f} requests/s, "
            f"{found['goodput_per_s']:.2f} of them within the goals"
        )
        draw(title, ["ms", "mean", "p50", "p90", "p95", "p99", "max", ""], rows, num_texts=1)
        for error, count in found["errors"].items():
            print(f"{count} x {error}")
    if (found := document.get("disturbance")) is not None:
        ratios = found["itl_ratio"] or {}
        print(
            f"beside long prompts the time between tokens is {_shown(ratios.get('p50'), 'x')} times as long at p50, "
            f"{_shown(ratios.get('p99'), 'x')} times at p99; {found['num_long_prompts_read']} of "
            f"{found['num_long_prompts_begun']} long prompts were read"
        )


def soak(
    model: options.Model = "demo",
    url: Url = None,
    api_key: ApiKey = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 10.0,
    clients: Annotated[int, typer.Option(min=1, help="Who ask at once.")] = 32,
    aborts: Annotated[float, typer.Option(min=0, max=1, help="The share that leaves before its end.")] = 0.2,
    pool: Annotated[int, typer.Option(min=8, max=10_000, help="Different requests.")] = 96,
    max_input_tokens: Annotated[int, typer.Option(min=50, help="Of the longest prompts, about.")] = 1500,
    seed: int = 0,
    device: options.DeviceChoice = options.Device.auto,
    output: Output = None,
    as_json: options.AsJson = False,
) -> None:
    """Put many clients on a server for a long time, check every answer against that of a quiet server, and afterwards
    that nothing is left behind. Exit code 1 if anything did not hold."""
    load = soaking.SoakLoad(minutes, clients, aborts, pool, max_input_tokens, seed)

    def config() -> Any:
        return options.engine_config(
            resolve_model(model), device=device, max_model_len=4096, kv_memory=str(SOAK_KV_BYTES)
        )

    with _server(url, config) as address:
        document = asyncio.run(soaking.soak(address, load, api_key, _say))
    if output is not None:
        output.write_text(json.dumps(document, indent=1))
    if as_json:
        print_json(document)
    else:
        _print_soak(document)
    sys.exit(0 if document["verdict"] == "ok" else 1)


def _print_soak(document: dict[str, Any]) -> None:
    memory = document["memory_slope_mib_per_minute"]
    rows = [[name, f"{count:,}", ""] for name, count in sorted(document["outcomes"].items())]
    rows += [[f"of kind {name}", f"{count:,}", ""] for name, count in sorted(document["kinds"].items())]
    rows += [[name.removeprefix("sparkstral_"), f"{value:,.0f}", ""] for name, value in document["metrics"].items()]
    rows.append(["memory, MiB a minute", "-" if memory is None else f"{memory:+.2f}", document["verdict"]])
    draw(f"soak of {document['seconds']:.0f} s", ["what", "count", ""], rows, num_texts=1)
    for line in (*document["broken"], *document["faults"]):
        print(line)
