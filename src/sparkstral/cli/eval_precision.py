"""`sparkstral eval nll | compare | precision`: what a cheaper number format changes, on any checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkstral.bench.settings import LEFT_OUT, SETTINGS, STORED
from sparkstral.cli import eval_demo, options, tables
from sparkstral.cli.measured import print_json, run_measured
from sparkstral.cli.model_folder import resolve_model
from sparkstral.demo import SKILLS, EvalItem, skill_named
from sparkstral.errors import ConfigError
from sparkstral.evals.demo import DemoResult, draw_items
from sparkstral.evals.skills import TOOL_SKILLS, lost_bars, needle_items, wrong_calls, wrong_needle

Length = Annotated[
    list[int] | None,
    typer.Option(min=60, help="Of a text with a pass key, about, in tokens; may be repeated. Default: 1000 and 4000."),
]
Text = Annotated[list[Path] | None, typer.Option(help="A text file to predict; may be repeated.")]
_KNOWN = ", ".join(SETTINGS)
SettingName = Annotated[str, typer.Option(help=f"One of {_KNOWN}.")]


def nll(
    model: options.Model = "demo",
    setting: SettingName = STORED,
    against: SettingName = "fp8",
    length: Length = None,
    text: Text = None,
    device: options.DeviceChoice = options.Device.auto,
    as_json: options.AsJson = False,
) -> None:
    """The loss of given tokens under one setting and another, and the KL between them, for each text and length."""
    document = _in_process(model, [setting, against], length, text, device)
    (print_json if as_json else tables.print_precision)(document)
    sys.exit(0 if document["verdict"] == "ok" else 1)


def compare(
    a: Annotated[str, typer.Argument(help=f"One of {_KNOWN}.")],
    b: Annotated[str, typer.Argument(help="Another of them.")],
    model: Annotated[str, typer.Option(help="demo, the folder of a checkpoint, or a Hub id.")] = "demo",
    length: Length = None,
    text: Text = None,
    device: options.DeviceChoice = options.Device.auto,
    as_json: options.AsJson = False,
) -> None:
    """Setting B beside setting A, position by position: KL, how often the likeliest token is the same, and the worst
    positions with what stood before them."""
    document = _in_process(model, [a, b], length, text, device)
    (print_json if as_json else tables.print_worst)(document)
    sys.exit(0 if document["verdict"] == "ok" else 1)


def precision(
    model: options.Model = "demo",
    output: Annotated[Path, typer.Option(help="The JSON to write; a plot goes beside it.")] = Path("precision.json"),
    length: Length = None,
    text: Text = None,
    items: Annotated[int, typer.Option(min=0, help="Questions of each kind, asked of each setting; 0: none.")] = 20,
    device: options.DeviceChoice = options.Device.auto,
    kernels: options.KernelsChoice = options.Kernels.auto,
    as_json: options.AsJson = False,
) -> None:
    """Judge FP8 weights, FP8 latents, both, and the other softmax scale on MODEL: KL and loss of texts in process, then
    pass keys and tool calls (of the demo all its skills) through a server with each. Exit code 1 if a setting that
    serving has loses a bar that the stored numbers meet."""
    document = _in_process(model, list(SETTINGS), length, text, device)
    document["command"] = ["sparkstral", *sys.argv[1:]]  # as it was typed: the file is for others, too
    plot = output.with_suffix(".svg")
    plot.write_text(document.pop("plot_svg"), encoding="utf-8")
    document["plot"] = plot.name
    if items:
        _ask_all(document, model, items, length, {"device": device, "kernels": kernels})
    document["verdict"] = "failed" if any(row["verdict"] == "failed" for row in document["rows"]) else "ok"
    output.write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")
    (print_json if as_json else tables.print_precision)(document)
    sys.exit(0 if document["verdict"] == "ok" else 1)


def _in_process(
    model: str, names: list[str], lengths: list[int] | None, texts: list[Path] | None, device: options.Device
) -> dict[str, Any]:
    for name in names:
        if name in LEFT_OUT:
            raise ConfigError(f"{name}: {LEFT_OUT[name]}. The settings are: {_KNOWN}.")
        if name not in SETTINGS:
            raise ConfigError(f"{name!r} is no setting. They are: {_KNOWN}.")
    arguments = [str(resolve_model(model)), "--device", device.value]
    for flag, values in (("--setting", names), ("--length", lengths), ("--text", texts)):
        for value in values or ():
            arguments += [flag, str(value)]
    document = run_measured("sparkstral.bench.precision", arguments)[0]
    return {**document, "checkpoint": "demo"} if model == "demo" else document


def _ask_all(
    document: dict[str, Any], model: str, count: int, lengths: list[int] | None, given: dict[str, Any]
) -> None:
    """The questions' rows go beside each setting's, and what it loses into its faults."""
    results: dict[str, DemoResult] = {}
    for name, setting in SETTINGS.items():
        if not setting.is_of_engine:
            continue
        held = {
            "dense": options.PrecisionName(setting.dense), "kv": options.PrecisionName(setting.kv)
        }  # fmt: skip
        print(f"asking with {name}", file=sys.stderr)
        results[name] = _ask(model, count, lengths, {**given, **held})
    document["skills"] = {name: eval_demo.rows_as_json(result) for name, result in results.items()}
    for row in document["rows"]:
        if row["setting"] in results:
            lost = lost_bars(results[STORED].rows, results[row["setting"]].rows)
            row["faults"] += [f"lost: {words}" for words in lost]
            row["verdict"] = "failed" if row["faults"] else "ok"


def _ask(model: str, count: int, lengths: list[int] | None, given: dict[str, Any]) -> DemoResult:
    if model == "demo":
        items = draw_items(SKILLS, count, max(1, count // 10), seed=0)
        return eval_demo.ask(items, EvalItem.wrong, model=model, url=None, concurrency=16, **given)
    needles = needle_items(lengths or [1000, 4000], count, seed=0)
    calls = draw_items([skill_named(name) for name in TOOL_SKILLS], count, count, seed=0)

    def judge(item: EvalItem, turn: Any, answer: dict[str, Any]) -> str | None:
        return (wrong_calls if item.skill in TOOL_SKILLS else wrong_needle)(item, turn, answer)

    return eval_demo.ask([*needles, *calls], judge, model=model, url=None, concurrency=4, **given)
