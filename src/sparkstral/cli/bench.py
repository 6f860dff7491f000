"""`sparkstral verify | tune | kernels build | bench ...`: flags, tables, exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkstral.bench import compare as comparing
from sparkstral.bench import project as projecting
from sparkstral.cli import options, tables
from sparkstral.cli.measured import print_json, run_measured
from sparkstral.cli.model_folder import resolve_model
from sparkstral.cli.text import read_json_file
from sparkstral.config import DEFAULT_MAX_NUM_BATCHED_TOKENS
from sparkstral.errors import ConfigError

Workers = Annotated[int | None, typer.Option(min=1, help="Processes that compile. Default: all cores.")]
Run = Annotated[Path, typer.Argument(help="The JSON of a run.")]
Only = Annotated[list[str] | None, typer.Option(help="Only rows whose name holds this text; several may be given.")]


def _seconds(default: float, what: str) -> Any:
    return typer.Option(min=1, help=f"After which no {what} is begun.", show_default=f"{default:g}")


def _flags(**given: object) -> list[str]:
    """--name value for what was given; a flag alone for True; once for each of a list."""
    found = []
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            found.append(flag)
        else:
            for each in value if isinstance(value, list) else [value]:
                found += [flag, str(each)]
    return found


def _show_and_exit(module: str, arguments: list[str], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    document, code = run_measured(module, arguments)
    (print_json if as_json else show)(document)
    sys.exit(code)


def verify(
    model: options.Model = "demo",
    seconds: Annotated[float, _seconds(900, "check")] = 900,
    workers: Workers = None,
    as_json: options.AsJson = False,
) -> None:
    """Check every kernel against its reference on this device, its memory's bandwidth, and which softmax scale MODEL's
    weights agree with. Exit code 0 only if every check was made and passed."""
    arguments = _flags(model=resolve_model(model), seconds=seconds, workers=workers)
    _show_and_exit("sparkstral.bench.verify", arguments, as_json, tables.print_verify)


def tune(
    seconds: Annotated[float, _seconds(90, "measurement")] = 90,
    output: Annotated[
        Path | None, typer.Option(help="The file of the choices. Default: in the cache folder, where serving looks.")
    ] = None,
    workers: Workers = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure the shipped candidate configurations of each kernel on this device and record the fastest. Serving uses
    the record and never tunes."""
    arguments = _flags(seconds=seconds, output=output, workers=workers)
    _show_and_exit("sparkstral.bench.tune", arguments, as_json, tables.print_tune)


def build(
    target: Annotated[str, typer.Option(help="sm_121a for a GB10, sm_90a for an H200.")],
    output: Annotated[Path | None, typer.Option(help="The folder of a pack to write.")] = None,
    all_candidates: Annotated[
        bool, typer.Option("--all-candidates", help="Instead, what `tune` may choose; takes many minutes.")
    ] = False,
    workers: Workers = None,
    as_json: options.AsJson = False,
) -> None:
    """Compile every shipped kernel for TARGET, which need not be here, and say what each takes of it. With --output,
    into a pack: a machine that has it compiles nothing at its first start."""
    arguments = _flags(target=target, output=output, all_candidates=all_candidates, workers=workers)
    _show_and_exit("sparkstral.kernels.build", arguments, as_json, tables.print_build)


def kernels(
    only: Only = None,
    check: Annotated[bool, typer.Option("--check", help="Compare results with the references too.")] = False,
    tuned: Annotated[Path | None, typer.Option(help="Configurations that `sparkstral tune` chose.")] = None,
    seconds: Annotated[float, _seconds(600, "case")] = 600,
    workers: Workers = None,
    as_json: options.AsJson = False,
) -> None:
    """Time every kernel on this GPU at the sizes of the real model, with its share of the memory's bandwidth."""
    arguments = _flags(only=only, check=check, tuned=tuned, seconds=seconds, workers=workers)
    _show_and_exit("sparkstral.bench.kernels", arguments, as_json, tables.print_kernels)


def engine(
    model: options.Model = "demo",
    only: Only = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of a row; the median counts.")] = 5,
    seconds: Annotated[float, _seconds(1800, "row")] = 1800,
    device: options.DeviceChoice = options.Device.auto,
    max_num_batched_tokens: options.MaxNumBatchedTokens = DEFAULT_MAX_NUM_BATCHED_TOKENS,
    dense: options.DenseChoice = options.PrecisionName.bf16,
    kv: options.KvChoice = options.PrecisionName.bf16,
    images: Annotated[bool, typer.Option("--images", help="Time the vision encoder too.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Few tokens, to see that it runs.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Time the engine: start, decode steps at batches of 1 to 32 and behind a long context, prompts of 1k to 30k."""
    arguments = [str(resolve_model(model))]
    arguments += _flags(
        only=only, repeats=repeats, seconds=seconds, device=device.value,
        max_num_batched_tokens=max_num_batched_tokens, dense=dense.value, kv=kv.value, images=images, tiny=tiny,
    )  # fmt: skip
    _show_and_exit("sparkstral.bench.engine", arguments, as_json, tables.print_engine)


def load(
    model: options.Model = "demo",
    verify: Annotated[bool, typer.Option("--verify", help="Compare a sample with the files.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Time the reading of MODEL's weights onto the device, and the memory that it takes meanwhile."""
    arguments = [str(resolve_model(model)), *_flags(verify=verify, json=as_json)]
    sys.exit(subprocess.run([sys.executable, "-m", "sparkstral.bench.load", *arguments]).returncode)


def project(run: Run, as_json: options.AsJson = False) -> None:
    """Project a run of `bench kernels` on an H200 to a GB10: per kernel, a decode step, a prompt. Nothing of it is
    measured on a GB10."""
    document = read_json_file(run, "RUN")
    if not isinstance(document, dict) or document.get("kind") not in ("bench kernels", "verify"):
        raise ConfigError(f"{run} is no run of `sparkstral bench kernels`.")
    (print_json if as_json else tables.print_project)(projecting.project(document))


def compare(
    a: Annotated[Path, typer.Argument(help="The JSON of a run.")],
    b: Annotated[Path, typer.Argument(help="The JSON of another run of the same command.")],
    as_json: options.AsJson = False,
) -> None:
    """Say what is faster in B than in A, slower, or within the runs' own noise. Exit code 1 if anything is slower or
    fails that did not."""
    runs = [read_json_file(path, name) for path, name in ((a, "A"), (b, "B"))]
    for path, run in zip((a, b), runs, strict=True):
        if not isinstance(run, dict) or "rows" not in run:
            raise ConfigError(f"{path} is no run of `sparkstral bench`.")
    document = comparing.document(*runs)
    (print_json if as_json else tables.print_compare)(document)
    worse = document["newly_failed"] or any(row["verdict"] == "slower" for row in document["rows"])
    sys.exit(1 if worse else 0)
