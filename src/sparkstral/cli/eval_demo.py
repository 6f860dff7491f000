"""`sparkstral eval demo | needle | tools`: questions with one right answer, asked through the HTTP door."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sparkstral.cli import options
from sparkstral.cli.local_server import local_server
from sparkstral.cli.model_folder import resolve_model
from sparkstral.demo import SKILLS, VISION, EvalItem, Skill, skill_named
from sparkstral.errors import ConfigError
from sparkstral.evals.demo import DemoResult, Judge, draw_items, run_demo
from sparkstral.evals.skills import TOOL_SKILLS, needle_items, wrong_calls, wrong_needle
from sparkstral.units import format_seconds

Seed = Annotated[int, typer.Option(help="Which conversations: another seed draws others.")]
Url = Annotated[str | None, typer.Option(help="Ask this running server instead of loading a model.")]
Concurrency = Annotated[int, typer.Option(min=1, max=256)]
Misses = Annotated[int, typer.Option(min=0, help="How many wrong answers to show.")]


def demo(
    items: Annotated[int, typer.Option(min=1, help="Held-out conversations for each row of the table.")] = 200,
    long_items: Annotated[int, typer.Option(min=1, help="The same for each length of a pass key.")] = 50,
    seed: Seed = 0,
    skill: Annotated[list[str] | None, typer.Option(help="Only this skill; may be given several times.")] = None,
    model: Annotated[str, typer.Option(help="demo, or the folder of another checkpoint of the demo.")] = "demo",
    url: Url = None,
    concurrency: Concurrency = 16,
    misses: Misses = 10,
    device: options.DeviceChoice = options.Device.auto,
    kernels: options.KernelsChoice = options.Kernels.auto,
    dense: options.DenseChoice = options.PrecisionName.bf16,
    kv: options.KvChoice = options.PrecisionName.bf16,
    as_json: options.AsJson = False,
) -> None:
    """Ask held-out questions of every skill and compare with the bars. Exit code 1 when a bar is missed."""
    skills = _chosen(skill)
    asked = draw_items(skills, items, long_items, seed)
    given: dict[str, Any] = {"device": device, "kernels": kernels, "dense": dense, "kv": kv}
    eyes = () if skill else draw_items([VISION], items, long_items, seed)  # asked of a demo that has some
    result = ask(asked, EvalItem.wrong, eyes, model=model, url=url, concurrency=concurrency, **given)
    _show_and_exit(result, "Demo model, held-out conversations, greedy", seed, misses, as_json)


def needle(
    model: options.Model = "demo",
    length: Annotated[
        list[int] | None,
        typer.Option(min=60, help="Of the text, in tokens of the demo; may be repeated. Default: 1,000 to 8,000."),
    ] = None,
    items: Annotated[int, typer.Option(min=1, help="Texts of each length, the pass key anywhere.")] = 10,
    seed: Seed = 0,
    url: Url = None,
    concurrency: Concurrency = 4,
    misses: Misses = 10,
    device: options.DeviceChoice = options.Device.auto,
    kernels: options.KernelsChoice = options.Kernels.auto,
    dense: options.DenseChoice = options.PrecisionName.bf16,
    kv: options.KvChoice = options.PrecisionName.bf16,
    as_json: options.AsJson = False,
) -> None:
    """Ask MODEL for a pass key in a long text. Right is an answer that holds it. Exit code 1 below 98 % of any
    length."""
    asked = needle_items(length or [1000, 2000, 4000, 8000], items, seed)
    given: dict[str, Any] = {"device": device, "kernels": kernels, "dense": dense, "kv": kv}
    result = ask(asked, wrong_needle, model=model, url=url, concurrency=concurrency, **given)
    _show_and_exit(result, "Pass keys in long texts", seed, misses, as_json)


def tools(
    model: options.Model = "demo",
    items: Annotated[int, typer.Option(min=1, help="Conversations of each kind.")] = 50,
    seed: Seed = 0,
    url: Url = None,
    concurrency: Concurrency = 16,
    misses: Misses = 10,
    device: options.DeviceChoice = options.Device.auto,
    kernels: options.KernelsChoice = options.Kernels.auto,
    dense: options.DenseChoice = options.PrecisionName.bf16,
    kv: options.KvChoice = options.PrecisionName.bf16,
    as_json: options.AsJson = False,
) -> None:
    """Ask MODEL for tool calls: one among several tools, several at once, one after the other. Right are the expected
    calls, whatever is said beside them. Exit code 1 below a bar."""
    asked = draw_items([skill_named(name) for name in TOOL_SKILLS], items, items, seed)
    given: dict[str, Any] = {"device": device, "kernels": kernels, "dense": dense, "kv": kv}
    result = ask(asked, wrong_calls, model=model, url=url, concurrency=concurrency, **given)
    _show_and_exit(result, "Tool calls", seed, misses, as_json)


def ask(
    items: Sequence[EvalItem],
    judge: Judge,
    vision_items: Sequence[EvalItem] = (),
    *,
    model: str,
    url: str | None,
    concurrency: int,
    **given: Any,
) -> DemoResult:
    """The items' result, and that of `vision_items` if the model reads images, from a running server or from one of
    this process for the engine's flags `given`."""

    def run(server_url: str) -> DemoResult:
        with Progress(
            TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[num_wrong]} wrong"), console=Console(stderr=True), transient=True,
        ) as progress:  # fmt: skip
            task = progress.add_task("", total=len(items), num_wrong=0)
            num_wrong = 0

            def on_item(_skill: str, right: bool) -> None:
                nonlocal num_wrong
                num_wrong += not right
                progress.update(task, advance=1, num_wrong=num_wrong)

            asking = run_demo(
                server_url, items, judge=judge, concurrency=concurrency, vision_items=vision_items, on_item=on_item
            )
            return asyncio.run(asking)

    if url is not None:
        return run(url)
    with local_server(options.engine_config(resolve_model(model), **given)) as server_url:
        return run(server_url)


def rows_as_json(result: DemoResult) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(row), "share": row.share, "is_met": row.is_met} for row in result.rows]


def _show_and_exit(result: DemoResult, title: str, seed: int, num_misses: int, as_json: bool) -> None:
    if as_json:
        document = {**dataclasses.asdict(result), "rows": rows_as_json(result), "is_met": result.is_met, "seed": seed}
        print(json.dumps(document, ensure_ascii=False, indent=1))
    else:
        _print(result, title, num_misses)
    sys.exit(0 if result.is_met else 1)


def _chosen(names: list[str] | None) -> tuple[Skill, ...]:
    if not names:
        return SKILLS
    known = {skill.name: skill for skill in (*SKILLS, VISION)}
    for name in names:
        if name not in known:
            raise ConfigError(f"--skill {name!r} is not known. The skills are: {', '.join(known)}.")
    return tuple(known[name] for name in names)


def _print(result: DemoResult, title: str, num_misses: int) -> None:
    console = Console()
    table = Table("skill", "", "bar", "right", "share", "", title=title)
    for row in result.rows:
        verdict = "[green]met[/]" if row.is_met else "[bold red]missed[/]"
        table.add_row(
            row.skill, row.label, f"{row.bar:.0%}", f"{row.num_right}/{row.num_items}", f"{row.share:.1%}", verdict
        )
    console.print(table)
    for miss in result.misses[:num_misses]:
        console.print(f"{miss.skill} {miss.label}: {miss.question!r}: {miss.why}", markup=False, style="dim")
    console.print(
        f"{sum(row.num_items for row in result.rows):,} conversations, {result.num_completion_tokens:,} tokens "
        f"generated in {format_seconds(result.seconds)}. Every bar met: {'yes' if result.is_met else 'no'}."
    )
