"""`sparkstral bench engine`: the rows of the project's table of targets, through the engine's own API.

    python -m sparkstral.bench.engine FOLDER --json OUT.json [--only decode] [--repeats 5] [--seconds S]

Method: greedy, random prompts that share no prefix; a decode step is (t(136 new) - t(8 new)) / 128; a prompt's speed
is its length over the time to its first token; medians, with the range of the repeats. `--tiny` is for tests.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sparkstral.bench.engine_under_test import EngineUnderTest
from sparkstral.bench.environment import describe_run, write_report
from sparkstral.bench.images import encoding_times, image_cases
from sparkstral.bench.timing import probe_bandwidth
from sparkstral.checkpoint.plan import plan_load
from sparkstral.config import DEFAULT_MAX_NUM_BATCHED_TOKENS, EngineConfig
from sparkstral.errors import ConfigError, SparkstralError
from sparkstral.kv_cache.layout import KvLayout
from sparkstral.memory.holding import BYTES_PER_VALUE, Holding
from sparkstral.memory.ledger import group_ledger
from sparkstral.model.config import ModelConfig
from sparkstral.model.work import encoder_flops, prefill_flops, step_bytes
from sparkstral.types import EnginePhase

FIRST_ORDINARY_ID = 1000  # below are control tokens


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked for."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    prompt_tokens: int = 256
    few_new: int = 8
    many_new: int = 136
    prefills: tuple[int, ...] = (1024, 4096, 8192, 30_000)
    long_context: int = 30_000
    repeats: int = 5


TINY = Sizes(
    batches=(1, 2), prompt_tokens=8, few_new=2, many_new=4, prefills=(16, 32), long_context=40, repeats=2
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """On an H200, of the full-size model; vLLM 0.23.0 measured there on 2026-12-01."""

    peer: float
    must: float
    aim: float
    floor: float | None = None


TARGETS = {
    "decode, batch 1": Target(5.24, 2.6, 1.7, 1.27),
    "decode, batch 2": Target(5.94, 3.2, 2.3, 1.71),
    "decode, batch 4": Target(7.33, 4.5, 3.4, 2.55),
    "decode, batch 8": Target(9.89, 6.5, 5.4, 4.07),
    "decode, batch 16": Target(13.9, 10.0, 8.8, 6.6),
    "decode, batch 32": Target(19.6, 15.0, 13.0, 10.1),
    "decode behind 30000 tokens, batch 1": Target(6.13, 3.0, 2.0, 1.43),
    "prefill of 1024 tokens": Target(12_900, 14_000, 20_000),
    "prefill of 4096 tokens": Target(20_500, 21_500, 30_000),
    "prefill of 8192 tokens": Target(21_600, 23_000, 32_000, 58_000),
    "prefill of 30000 tokens": Target(17_300, 19_000, 26_000),
    "loading": Target(31.6, 15, 9),
    "process start to first token": Target(233, 40, 15),
}


@dataclass(frozen=True, slots=True)
class Work:
    """One row to come: `measure` gives the figures of the repeats."""

    name: str
    unit: str
    measure: Callable[[EngineUnderTest], list[float]]
    num_bytes: float = 0  # of a decode step
    flops_a_token: float = 0  # of a prompt
    flops: float = 0  # of what takes so many ms


class Prompts:
    """Random token ids; no two prompts begin alike."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._first = min(FIRST_ORDINARY_ID, vocab_size // 2)
        self._vocab_size = vocab_size

    def draw(self, count: int, num_tokens: int) -> list[list[int]]:
        return [self._random.choices(range(self._first, self._vocab_size), k=num_tokens) for _ in range(count)]


def work_list(config: ModelConfig, sizes: Sizes, prompts: Prompts, held: Holding) -> list[Work]:
    kv_bytes = KvLayout.of(held.kv, config.num_hidden_layers, BYTES_PER_VALUE["bf16"], 1).bytes_per_token
    read_bytes = partial(step_bytes, config, dense_bytes=BYTES_PER_VALUE[held.dense], kv_bytes_per_token=kv_bytes)
    found = [
        Work(
            f"decode, batch {batch}", "ms", _decode(sizes, prompts, batch, sizes.prompt_tokens),
            num_bytes=read_bytes(batch, batch * (sizes.prompt_tokens + (sizes.few_new + sizes.many_new) // 2)),
        )
        for batch in sizes.batches
    ]  # fmt: skip
    found += [
        Work(f"prefill of {n} tokens", "tok/s", _prefill(sizes, prompts, n), flops_a_token=prefill_flops(config, n) / n)
        for n in sizes.prefills
    ]
    name = f"decode behind {sizes.long_context} tokens, batch 1"
    num_bytes = read_bytes(1, sizes.long_context)
    return [*found, Work(name, "ms", _decode(sizes, prompts, 1, sizes.long_context), num_bytes=num_bytes)]


def _decode(sizes: Sizes, prompts: Prompts, batch: int, num_tokens: int) -> Callable[[EngineUnderTest], list[float]]:
    def measure(engine: EngineUnderTest) -> list[float]:
        _elapsed(engine, prompts.draw(batch, num_tokens), sizes.few_new)  # warm
        steps = sizes.many_new - sizes.few_new
        return [
            (
                _elapsed(engine, prompts.draw(batch, num_tokens), sizes.many_new)
                - _elapsed(engine, prompts.draw(batch, num_tokens), sizes.few_new)
            )
            / steps
            * 1e3
            for _ in range(sizes.repeats)
        ]

    return measure


def _prefill(sizes: Sizes, prompts: Prompts, num_tokens: int) -> Callable[[EngineUnderTest], list[float]]:
    def measure(engine: EngineUnderTest) -> list[float]:
        _elapsed(engine, prompts.draw(1, num_tokens), 1)  # warm
        return [num_tokens / _elapsed(engine, prompts.draw(1, num_tokens), 1) for _ in range(sizes.repeats)]

    return measure


def _elapsed(engine: EngineUnderTest, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
    """Seconds from the first request to the last token of all."""
    begin, results = engine.run(prompts, max_tokens)
    for result in results:
        if result.num_cached_tokens:
            raise SparkstralError(f"{result.num_cached_tokens} tokens of a random prompt came from the prefix cache.")
        if len(result.token_ids) != max_tokens:
            raise SparkstralError(f"{len(result.token_ids)} tokens came where {max_tokens} were asked for.")
    return max(result.times[-1] for result in results) - begin


def process_age_s() -> float | None:
    """Seconds since this process began; None where /proc does not tell. Source: proc(5), field 22 of stat."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return None
    started_ticks = int(stat.rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def row_of(name: str, unit: str, values: Sequence[float], is_full_size: bool) -> dict[str, Any]:
    """A row from the figures of its repeats, with its targets and whether they are met."""
    row: dict[str, Any] = {
        "name": name, "value": statistics.median(values), "unit": unit, "low": min(values), "high": max(values),
        "runs": list(values), "verdict": "ok", "faults": [],
    }  # fmt: skip
    target = TARGETS.get(name) if is_full_size else None
    if target is not None:
        sign = 1 if unit.endswith("/s") else -1
        row |= asdict(target)
        row["met"] = next(
            (which for which in ("aim", "must") if sign * row["value"] >= sign * row[which]), "missed"
        )  # fmt: skip
    return row


def bench_engine(
    config: EngineConfig,
    sizes: Sizes,
    only: Sequence[str],
    seconds: float,
    report: dict[str, Any],
    output: Path,
    with_images: bool = False,
) -> None:
    """Fill `report` and write it after every row. Raises CheckpointError, ConfigError and NotReadyError as the engine
    does; a row that fails costs no other."""
    begin = time.perf_counter()
    model = plan_load(config.model_path).config
    held = Holding(config.dense, config.kv)
    # The targets are those of the model as it is stored.
    is_full_size = model.num_hidden_layers == 36 and model.vocab_size == 131072 and held == Holding()
    report["engine"] = {
        name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()
    } | {"model_path": config.model_path.name}  # fmt: skip
    report["sizes"] = asdict(sizes)
    rows = report["rows"] = []
    prompts = Prompts(model.vocab_size)
    works = work_list(model, sizes, prompts, held)
    if with_images:
        works += [
            Work(name, "ms", encoding_times(grids, sizes.repeats),
                 flops=encoder_flops(model, [(2 * rows, 2 * columns) for rows, columns in grids]))
            for name, grids in image_cases(model).items()
        ]  # fmt: skip
    works = [work for work in works if not only or any(text in work.name for text in only)]
    total = len(works) + 2

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        figure = f"{row['value']:,.4g} {row['unit']}" if "value" in row else "; ".join(row["faults"])
        print(f"{len(rows)}/{total} {row['name']}  {figure}", flush=True)
        write_report(output, report)

    with EngineUnderTest(config) as engine:
        engine.run(prompts.draw(1, 8), 1)
        age = process_age_s()
        phases = engine.phase_times
        loading = phases[EnginePhase.WARMING_UP] - phases[EnginePhase.LOADING]
        add(row_of("loading", "s", [loading], is_full_size))
        if age is not None:
            add(row_of("process start to first token", "s", [age], is_full_size))
        assert engine.info is not None
        report["engine_info"] = asdict(engine.info)
        if engine.info.memory is not None:
            report["memory"] = group_ledger(engine.info.memory)
            report["memory_by_line"] = report["engine_info"].pop("memory")
        for work in works:
            if time.perf_counter() - begin > seconds:
                add({"name": work.name, "verdict": "skipped", "faults": [f"no time was left of {seconds:g} s"]})
                continue
            try:
                row = row_of(work.name, work.unit, work.measure(engine), is_full_size)
            except SparkstralError as error:
                add({"name": work.name, "verdict": "failed", "faults": [str(error)]})
                continue
            if work.num_bytes:
                row["bytes"] = work.num_bytes
            if work.flops:
                row["tflop_per_s"] = work.flops / max(row["value"], 1e-6) / 1e9
            if work.flops_a_token:
                row["tflop_per_s"] = work.flops_a_token * row["value"] / 1e12
            add(row)
    if report["device"] != "cpu" and report["engine_info"]["device"] != "cpu":
        torch.cuda.empty_cache()
        bandwidth = probe_bandwidth()
        report["bandwidth"] = asdict(bandwidth)
        for row in rows:
            if "bytes" in row and "value" in row:
                row["bandwidth_share"] = row["bytes"] / row["value"] * 1e3 / bandwidth.read_bytes_per_s
    report["verdict"] = conclude(rows)
    write_report(output, report)


def conclude(rows: Sequence[dict[str, Any]]) -> str:
    """failed: a row could not be measured or misses what it must reach; incomplete: there was no time for one."""
    if any(row["verdict"] == "failed" or row.get("met") == "missed" for row in rows):
        return "failed"
    return "incomplete" if any(row["verdict"] == "skipped" for row in rows) else "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="the folder of a checkpoint")
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--only", action="append", default=[], help="rows whose name holds this text")
    parser.add_argument("--repeats", type=int, default=Sizes().repeats)
    parser.add_argument("--seconds", type=float, default=1800, help="after which no row is begun")
    parser.add_argument("--max-num-batched-tokens", type=int, default=DEFAULT_MAX_NUM_BATCHED_TOKENS)
    parser.add_argument("--dense", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--kv", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--images", action="store_true", help="time the vision encoder too")
    parser.add_argument("--tiny", action="store_true", help="few tokens, for a dry run")
    arguments = parser.parse_args()
    sizes = TINY if arguments.tiny else Sizes(repeats=arguments.repeats)
    report = describe_run("bench engine")
    try:
        config = EngineConfig(
            arguments.model, device=arguments.device, max_num_batched_tokens=arguments.max_num_batched_tokens,
            dense=arguments.dense, kv=arguments.kv,
        )  # fmt: skip
        bench_engine(
            config, sizes, arguments.only, arguments.seconds, report, arguments.json, with_images=arguments.images
        )
    except SparkstralError as error:
        print(f"sparkstral: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0 if report["verdict"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
