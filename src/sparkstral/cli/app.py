"""The program `sparkstral`: its commands, its exit codes (0 ok, 1 failed, 2 usage), its one way to say an error.

Owns the table of commands; each command's work is in the file of its name.
"""

from __future__ import annotations

import io
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from sparkstral.cli import (
    bench,
    bench_load,
    chat,
    connect,
    deploy,
    doctor,
    download,
    eval_demo,
    eval_precision,
    inspect,
    lifecycle,
    plan,
    serve,
)
from sparkstral.errors import ConfigError, SparkstralError

app = typer.Typer(
    name="sparkstral",
    help="Mistral Small 4 119B NVFP4 on one DGX Spark: an engine and its OpenAI server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"sparkstral {version('sparkstral')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.command("plan")(plan.plan)
app.command("connect")(connect.connect)
app.command("download")(download.download)
app.command("status")(lifecycle.status)
app.command("stop")(lifecycle.stop)
app.command("logs")(lifecycle.logs)
app.command("doctor")(doctor.doctor)
app.command("verify")(bench.verify)
app.command("tune")(bench.tune)

inspect_app = typer.Typer(help="Look into a checkpoint or at what the model sees.", no_args_is_help=True)
inspect_app.command("checkpoint")(inspect.checkpoint)
inspect_app.command("tokens")(inspect.tokens)
app.add_typer(inspect_app, name="inspect")

deploy_app = typer.Typer(help="Run it beyond this terminal: shown first, done with --apply.", no_args_is_help=True)
deploy_app.command("docker")(deploy.docker)
deploy_app.command("systemd")(deploy.systemd)
deploy_app.command("vllm")(deploy.vllm)
deploy_app.command("cluster")(deploy.cluster)
app.add_typer(deploy_app, name="deploy")

eval_app = typer.Typer(help="Measure what the model can do.", no_args_is_help=True)
eval_app.command("demo")(eval_demo.demo)
eval_app.command("needle")(eval_demo.needle)
eval_app.command("tools")(eval_demo.tools)
eval_app.command("nll")(eval_precision.nll)
eval_app.command("compare")(eval_precision.compare)
eval_app.command("precision")(eval_precision.precision)
app.add_typer(eval_app, name="eval")

kernels_app = typer.Typer(help="The kernels' compiled forms.", no_args_is_help=True)
kernels_app.command("build")(bench.build)
app.add_typer(kernels_app, name="kernels")

bench_app = typer.Typer(help="Measure, project, compare.", no_args_is_help=True)
for command in (
    bench.kernels, bench.engine, bench.load, bench_load.serve, bench_load.soak, bench.project, bench.compare,
):  # fmt: skip
    bench_app.command(command.__name__)(command)
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Run the program; errors meant for users become one sentence on standard error, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # closed ones are None
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows ?, and the rest
    try:
        app()
    except ConfigError as error:
        print(f"sparkstral: {error}", file=sys.stderr)
        sys.exit(2)
    except SparkstralError as error:
        print(f"sparkstral: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # the disk is full, say
        print(f"sparkstral: {error}", file=sys.stderr)
        sys.exit(1)
