"""`sparkstral eval demo`: the table of the demo model's skills against their bars."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sparkstral.cli import options
from sparkstral.cli.local_server import local_server
from sparkstral.cli.model_folder import resolve_model
from sparkstral.demo import SKILLS, Skill
from sparkstral.errors import ConfigError
from sparkstral.evals.demo import DemoResult, draw_items, run_demo
from sparkstral.units import format_seconds


def demo(
    items: Annotated[int, typer.Option(min=1, help="Held-out conversations for each row of the table.")] = 200,
    long_items: Annotated[int, typer.Option(min=1, help="The same for each length of a pass key.")] = 50,
    seed: Annotated[int, typer.Option(help="Which conversations: another seed draws others.")] = 0,
    skill: Annotated[list[str] | None, typer.Option(help="Only this skill; may be given several times.")] = None,
    model: Annotated[str, typer.Option(help="demo, or the folder of another checkpoint of the demo.")] = "demo",
    url: Annotated[str | None, typer.Option(help="Ask this running server instead of loading a model.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256)] = 16,
    misses: Annotated[int, typer.Option(min=0, help="How many wrong answers to show.")] = 10,
    device: options.DeviceChoice = options.Device.auto,
    kernels: options.KernelsChoice = options.Kernels.auto,
    dense: options.DenseChoice = options.PrecisionName.bf16,
    kv: options.KvChoice = options.PrecisionName.bf16,
    as_json: options.AsJson = False,
) -> None:
    """Ask held-out questions of every skill and compare with the bars. Exit code 1 when a bar is missed."""
    skills = _chosen(skill)

    def run(server_url: str) -> DemoResult:
        with Progress(
            TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[num_wrong]} wrong"), console=Console(stderr=True), transient=True,
        ) as progress:  # fmt: skip
            total = len(draw_items(skills, items, long_items, seed))
            task = progress.add_task("", total=total, num_wrong=0)
            num_wrong = 0

            def on_item(_skill: str, right: bool) -> None:
                nonlocal num_wrong
                num_wrong += not right
                progress.update(task, advance=1, num_wrong=num_wrong)

            return asyncio.run(
                run_demo(
                    server_url,
                    num_items=items,
                    num_long_items=long_items,
                    seed=seed,
                    skills=skills,
                    concurrency=concurrency,
                    on_item=on_item,
                )
            )

    if url is not None:
        result = run(url)
    else:
        config = options.engine_config(resolve_model(model), device=device, kernels=kernels, dense=dense, kv=kv)
        with local_server(config) as server_url:
            result = run(server_url)
    if as_json:
        document = dataclasses.asdict(result)
        for row, plain in zip(result.rows, document["rows"], strict=True):
            plain |= {"share": row.share, "is_met": row.is_met}
        print(json.dumps({**document, "is_met": result.is_met, "seed": seed}, ensure_ascii=False, indent=1))
    else:
        _print(result, misses)
    sys.exit(0 if result.is_met else 1)


def _chosen(names: list[str] | None) -> tuple[Skill, ...]:
    if not names:
        return SKILLS
    known = {skill.name: skill for skill in SKILLS}
    for name in names:
        if name not in known:
            raise ConfigError(f"--skill {name!r} is not known. The skills are: {', '.join(known)}.")
    return tuple(known[name] for name in names)


def _print(result: DemoResult, num_misses: int) -> None:
    console = Console()
    table = Table("skill", "", "bar", "right", "share", "", title="Demo model, held-out conversations, greedy")
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
