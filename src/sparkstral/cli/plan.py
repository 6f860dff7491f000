"""`sparkstral plan`: every byte of one Spark before anything is loaded; flags, the bar, the table, the exit code."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkstral.checkpoint.facts import ModelFacts, facts_of_folder, facts_of_params, released_model
from sparkstral.checkpoint.locate import is_hub_id
from sparkstral.checkpoint.slots import TensorClass
from sparkstral.cli import options
from sparkstral.cli.model_folder import resolve_model
from sparkstral.config import DEFAULT_MAX_NUM_SEQS
from sparkstral.engine.spark_plan import SparkPlan, Target, plan_spark
from sparkstral.errors import ConfigError
from sparkstral.hub.headers import fetch_headers
from sparkstral.memory.holders import Holder, advice, gpu_free_bytes, gpu_holders, host_holders
from sparkstral.memory.holding import DraftHead, Holding
from sparkstral.memory.host import DEFAULT_TOTAL_BYTES
from sparkstral.memory.probe import AvailableMemory, host_memory
from sparkstral.units import MiB, format_gib, format_seconds

MAX_CONCURRENCY = 128  # requests that the GPU's kernels decode at once


class Draft(StrEnum):
    none = "none"
    eagle = "eagle"


# What a segment of the bar is made of, in its order; the colours only tell neighbours apart.
_WEIGHTS = frozenset({*(kind.value for kind in TensorClass), "w_uk, w_uv", "allocator gaps"})
_SEGMENTS = (
    ("weights", "blue"), ("draft head", "cyan"), ("KV cache", "green"), ("workspaces", "magenta"),
    ("host and driver", "yellow"), ("kept free", "red"), ("spare", "bright_black"),
)  # fmt: skip
_BAR_WIDTH = 72
_NO_BREAK = "\N{NO-BREAK SPACE}"


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            help="The folder of a checkpoint, a params.json, or a Hub id, of which only headers are fetched. Default: "
            "the released Mistral Small 4 NVFP4.",
            metavar="MODEL",
            show_default=False,
        ),
    ] = None,
    max_model_len: options.MaxModelLen = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_CONCURRENCY, help="Requests of the whole length that must fit at once."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="What the machine shows of its memory. Default: 119GiB.", show_default=False)
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Plan for what is free on this machine now.")] = False,
    mla: Annotated[
        bool, typer.Option("--mla/--no-mla", help="--no-mla: the fallback on vLLM, with keys and values of every head.")
    ] = True,
    dense: options.DenseChoice = options.PrecisionName.bf16,
    kv: options.KvChoice = options.PrecisionName.bf16,
    no_vision: Annotated[bool, typer.Option("--no-vision", help="Leave the image encoder out.")] = False,
    draft: Annotated[Draft, typer.Option(help="A head that proposes tokens.")] = Draft.none,
    as_json: options.AsJson = False,
) -> None:
    """Say what one DGX Spark would hold of MODEL, line by line, and whether it fits: no GPU, no weights needed. Exit
    code 0: it fits; 1: it does not, with what to change."""
    if live and memory is not None:
        raise ConfigError("Give either --memory, for a machine to come, or --live, for this one now.")
    facts = find_facts(model)
    head = DraftHead.published(facts.config) if draft is Draft.eagle else None
    target = Target(
        memory=live_memory() if live else total_memory(memory),
        is_live=live,
        max_model_len=max_model_len,
        concurrency=concurrency,
        holding=Holding(dense=dense.value, kv=kv.value, draft=head),
        with_vision=not no_vision,
        mla=mla,
    )
    found = plan_spark(facts, target)
    holders = (*gpu_holders(), *host_holders()) if live else ()
    if as_json:
        print(json.dumps(as_document(facts, target, found, holders), ensure_ascii=False, indent=1))
    else:
        show(facts, target, found, holders)
    sys.exit(0 if found.memory.fits else 1)


def find_facts(model: str | None) -> ModelFacts:
    """Of what `model` names. Raises CheckpointError with what to do."""
    if model is None:
        return released_model()
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".json":
        return facts_of_params(path, model)
    if not path.exists() and is_hub_id(model):
        with tempfile.TemporaryDirectory(prefix="sparkstral-headers-") as folder:
            fetch_headers(model, Path(folder))
            return facts_of_folder(Path(folder), model)
    return facts_of_folder(resolve_model(model), model)


def total_memory(text: str | None) -> AvailableMemory:
    if text is None:
        return AvailableMemory(DEFAULT_TOTAL_BYTES, "what a Spark shows at least")
    return AvailableMemory(options.parse_bytes(text, "--memory"), "--memory")


def live_memory() -> AvailableMemory:
    """What is free now: on a GPU with memory of its own there, else on the host, which a Spark's GPU shares."""
    free_bytes = gpu_free_bytes()
    return host_memory() if free_bytes is None else AvailableMemory(free_bytes, "free on the GPU, by nvidia-smi")


def serve_command(facts: ModelFacts, target: Target, found: SparkPlan) -> str:
    """The command that serves what was planned."""
    plan = found.memory
    pool = next(line.num_bytes for line in plan.lines if line.name == "KV pool")
    words = ["sparkstral serve", facts.name, f"--max-model-len {plan.max_model_len}"]
    if target.concurrency is not None:
        words.append(f"--kv-memory {-(-pool // MiB)}MiB")
    words += [f"--{flag} fp8" for flag in ("dense", "kv") if getattr(target.holding, flag) == "fp8"]
    if (target.concurrency or 0) > DEFAULT_MAX_NUM_SEQS:
        words.append(f"--max-num-seqs {target.concurrency}")
    return " ".join(words)


def as_document(
    facts: ModelFacts, target: Target, found: SparkPlan, holders: tuple[Holder, ...]
) -> dict[str, Any]:
    plan = found.memory
    return {
        "schema_version": 1,
        "kind": "plan",
        "model": facts.name,
        "source": facts.source,
        "mla": target.mla,
        "kv": target.holding.kv,
        "dense": target.holding.dense,
        "live": target.is_live,
        "lines": [asdict(line) for line in plan.lines],
        "total_bytes": plan.total_bytes,
        "available_bytes": plan.available.num_bytes,
        "available_source": plan.available.source,
        "floor_bytes": plan.floor_bytes,
        "spare_bytes": plan.spare_bytes,
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "num_blocks": plan.num_blocks,
        "max_model_len": plan.max_model_len,
        "concurrency": plan.concurrency,
        "max_concurrency": plan.max_concurrency,
        "fits": plan.fits,
        "verdict": plan.verdict,
        "serve": serve_command(facts, target, found) if plan.fits and target.mla else None,
        "projection": asdict(found.projection),
        "holders": [asdict(holder) for holder in holders],
    }


def show(facts: ModelFacts, target: Target, found: SparkPlan, holders: tuple[Holder, ...]) -> None:
    """For people: a bar, the lines, what to expect, who holds the rest, the verdict."""
    console, plan = Console(), found.memory
    how = "native MLA" if target.mla else "MLA off (the fallback on vLLM)"
    console.print(f"{facts.name} on one DGX Spark, {how}; sizes by {facts.source}", highlight=False)
    _draw_bar(console, found)
    table = Table("memory", "GiB", "how it is known")
    table.columns[1].justify = "right"
    for line in plan.lines:
        table.add_row(line.name, f"{line.num_bytes / 2**30:,.3f}", line.how_known)
    table.add_section()
    table.add_row("total", f"{plan.total_bytes / 2**30:,.3f}", "")
    table.add_row("available", f"{plan.available.num_bytes / 2**30:,.3f}", plan.available.source)
    if plan.floor_bytes:
        table.add_row("kept free", f"{plan.floor_bytes / 2**30:,.3f}", "the host needs it")
    missing = plan.spare_bytes < 0
    table.add_row("missing" if missing else "spare", f"{abs(plan.spare_bytes) / 2**30:,.3f}", "")
    console.print(table)
    _draw_projection(console, found)
    for holder in holders:
        console.print(f"held now: {holder}", highlight=False, markup=False)
    if others := advice(holders):
        console.print(others, style="yellow", highlight=False, markup=False)
    console.print(plan.verdict, style="green" if plan.fits else "bold red", highlight=False, markup=False)
    if plan.fits and target.mla:
        most = f"Up to {plan.max_concurrency:,} requests of {plan.max_model_len:,} tokens fit at once (--concurrency)."
        console.print(most, highlight=False)
        console.print(f"Serve it with: {serve_command(facts, target, found)}", highlight=False, markup=False)


def _draw_bar(console: Console, found: SparkPlan) -> None:
    plan = found.memory
    sizes = dict.fromkeys((name for name, _ in _SEGMENTS), 0)
    for line in plan.lines:
        sizes[_segment_of(line.name)] += line.num_bytes
    sizes["kept free"] = plan.floor_bytes
    sizes["spare"] = max(0, plan.spare_bytes)
    whole = max(sum(sizes.values()), plan.available.num_bytes)
    width = min(_BAR_WIDTH, console.width - 2)
    bar, legend = Text(), Text()
    done_bytes, done_cells = 0, 0
    for name, colour in _SEGMENTS:
        if not sizes[name]:
            continue
        done_bytes += sizes[name]
        cells = max(1, round(done_bytes / whole * width) - done_cells)
        done_cells += cells
        bar.append("█" * cells, colour)
        legend.append(f"█{_NO_BREAK}", colour)
        legend.append(f"{name} {format_gib(sizes[name])}  ".replace(" ", _NO_BREAK) + " ")
    console.print(bar)
    console.print(legend)


def _segment_of(name: str) -> str:
    if name in _WEIGHTS:
        return "weights"
    if name == "KV pool":
        return "KV cache"
    if name in ("CUDA context", "host processes", "system", "page cache"):
        return "host and driver"
    return "draft head" if name == "draft head" else "workspaces"


def _draw_projection(console: Console, found: SparkPlan) -> None:
    projection = found.projection
    table = Table(
        "decoding", "tokens behind each", "GB a step", "tok/s each", "tok/s in all",
        title=f"what to expect of a GB10: {projection.label}", title_justify="left",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for row in projection.decode:
        table.add_row(
            f"{row.num_requests} at once", f"{row.context_tokens:,}", f"{row.step_bytes / 1e9:,.2f}",
            f"{row.tokens_per_s_each:,.1f}", f"{row.tokens_per_s:,.1f}",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"A prompt of {projection.prompt_tokens:,} tokens takes {format_seconds(projection.prompt_s)} at least, "
        f"loading the weights {format_seconds(projection.load_s)} from a disk of 5 GB/s ({projection.label}).",
        highlight=False,
    )


