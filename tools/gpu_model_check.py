"""The fast model on a GPU against the plain one on the CPU: logits, greedy answers, CUDA graphs, and its speed.

    python -m tools.gpu_model_check --output model.json [--checkpoint FOLDER]

By default the shipped demo checkpoint. Every part is guarded: one that fails costs no other, and the JSON grows part by
part. `--device cpu` under TRITON_INTERPRET=1 is a dry run of every part with a tiny random model.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from sparkstral.bench.environment import describe_run
from sparkstral.checkpoint.load import load
from sparkstral.checkpoint.plan import plan_load
from sparkstral.kernels.configs import KernelConfigs
from sparkstral.model.config import EOS_TOKEN_ID
from sparkstral.model.fast_batch import AbsorbedGroup, FastBatch
from sparkstral.model.fast_mistral4 import FastLimits, FastMistral4
from sparkstral.model.mistral4 import Mistral4
from sparkstral.runner.fast_batch import StepShape, build_fast_batch
from sparkstral.runner.forward_batch import build_forward_batch
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.types import ScheduledRequest
from tests.support.fast_model import small_configs, with_stacks
from tests.support.tiny_checkpoint import TinyModel, write_native
from tools.gpu_runner_parts import cached_variants, check_runner, compile_variants, time_loop

DEMO = Path(__file__).parents[1] / "src/sparkstral/demo/checkpoint"
NEAR_TIE = 0.05  # of logits: rounding may choose either of the two


@dataclass(frozen=True)
class Setting:
    """Where it runs; `small` is for the interpreter."""

    device: str
    checkpoint: Path

    @property
    def small(self) -> bool:
        return self.device == "cpu"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.small else torch.bfloat16

    @property
    def block_size(self) -> int:
        return 16 if self.small else 64

    @property
    def blocks_a_row(self) -> int:
        return 8 if self.small else 64

    @property
    def rows(self) -> int:
        return 4 if self.small else 64

    @property
    def decode_sizes(self) -> tuple[int, ...]:
        return (1, 2) if self.small else (1, 2, 4, 8, 16, 32)

    @property
    def prompt_sizes(self) -> tuple[int, ...]:
        return (20, 7) if self.small else (700, 5, 64, 200)


def limits(setting: Setting) -> FastLimits:
    tokens = 64 if setting.small else 4096
    return FastLimits(
        max_num_seqs=setting.rows,
        max_positions=setting.block_size * setting.blocks_a_row,
        prefill_keys=tokens,
        prefill_tokens=tokens,
        moe_tokens=tokens,
    )


def fast_model(setting: Setting) -> FastMistral4:
    config, weights = load(setting.checkpoint, setting.device)
    kernels = small_configs() if setting.small else KernelConfigs.shipped(torch.cuda.get_device_capability())
    device = torch.device(setting.device)
    return FastMistral4(config, with_stacks(weights), kernels, limits(setting), device, setting.dtype)


class World:
    """Both models and their caches; row r of a cache has its own blocks."""

    def __init__(self, setting: Setting, *, with_plain: bool = True) -> None:
        self.setting = setting
        self.fast = fast_model(setting)
        self.config = self.fast.config
        self.pool = self.new_pool(setting.device, setting.dtype)
        self.nothing = torch.zeros(1, dtype=torch.int64, device=setting.device)
        if with_plain:
            self.plain = Mistral4(*load(setting.checkpoint), torch.device("cpu"), torch.float32)
            self.plain_pool = self.new_pool("cpu", torch.float32)

    def new_pool(self, device: str, dtype: torch.dtype) -> Tensor:
        s = self.setting
        blocks = 1 + s.rows * s.blocks_a_row
        return allocate_latent_pool(self.config.num_hidden_layers, blocks, s.block_size, torch.device(device), dtype)

    def blocks(self, row: int) -> tuple[int, ...]:
        first = 1 + row * self.setting.blocks_a_row
        return tuple(range(first, first + self.setting.blocks_a_row))

    def part(self, row: int, token_ids: Sequence[int], begin: int = 0) -> ScheduledRequest:
        return ScheduledRequest(str(row), tuple(token_ids), begin, self.blocks(row), True)

    def by_fast(self, step: Sequence[ScheduledRequest], *, all_rows: bool = False) -> Tensor:
        """Logits of the last tokens in the order of `step`, or of all tokens of its only request."""
        s = self.setting
        shape = StepShape(s.block_size, s.rows, self.fast.kernels.prefill, self.fast.limits.prefill_keys)
        batch, requests = build_fast_batch(step, shape, self.fast.device, {}, self.nothing)
        if all_rows:
            batch = replace(batch, logits_rows=None)
        logits = self.fast.forward(batch, self.pool)
        return logits if all_rows else logits[[requests.index(i) for i in range(len(step))]]

    def by_plain(self, step: Sequence[ScheduledRequest], *, all_rows: bool = False) -> Tensor:
        batch = build_forward_batch(step, self.setting.block_size, torch.device("cpu"))
        if all_rows:
            batch = replace(batch, logits_rows=torch.arange(len(batch.input_ids)))
        return self.plain.forward(batch, self.plain_pool)

    def random_tokens(self, count: int, seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        low = min(1000, self.config.vocab_size // 2)
        return torch.randint(low, self.config.vocab_size, (count,), generator=generator).tolist()


class Decode:
    """Steps of one token for `size` requests: static inputs, eager or as a graph."""

    def __init__(self, world: World, size: int) -> None:
        self.world, self.size = world, size
        device = world.fast.device

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.tables = zeros(size, world.setting.blocks_a_row, dtype=torch.int32)
        self.seq_lens = zeros(size, dtype=torch.int32)
        group = AbsorbedGroup(
            slice(0, size),
            self.tables,
            torch.arange(size + 1, dtype=torch.int32, device=device),
            self.seq_lens,
            1,
        )
        self.batch = FastBatch(
            input_ids=zeros(size),
            sources=torch.full((size,), -1, dtype=torch.int32, device=device),
            previous=world.nothing,
            positions=zeros(size),
            slots=torch.full((size,), -1, dtype=torch.int64, device=device),
            absorbed=(group,),
            expanded=None,
            logits_rows=None,
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits = torch.empty(0)

    def set(self, tokens: Sequence[int], positions: Sequence[int], rows: Sequence[int]) -> None:
        """The first len(tokens) rows; the others pad."""
        n, size = len(tokens), self.world.setting.block_size
        blocks = [self.world.blocks(row) for row in rows]
        slots = [b[p // size] * size + p % size for b, p in zip(blocks, positions, strict=True)]
        pad = [0] * (self.size - n)
        self.batch.input_ids.copy_(torch.tensor([*tokens, *pad]))
        self.batch.positions.copy_(torch.tensor([*positions, *pad]))
        self.batch.slots.copy_(torch.tensor([*slots, *(-1 for _ in pad)]))
        self.seq_lens.copy_(torch.tensor([*(p + 1 for p in positions), *pad]))
        self.tables[:n].copy_(torch.tensor(blocks, dtype=torch.int32))

    def eager(self) -> Tensor:
        return self.world.fast.forward(self.batch, self.world.pool)

    def capture(self) -> None:
        if self.world.setting.small:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.eager()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self.eager()

    def replay(self) -> Tensor:
        if self.graph is None:
            return self.eager()
        self.graph.replay()
        return self.logits


def difference(ours: Tensor, exact: Tensor) -> dict[str, float]:
    """Of logits [L, V]: errors over the deviation of the right ones, and how often the largest is the same one."""
    ours, exact = ours.float().cpu(), exact.float().cpu()
    error = (ours - exact).abs() / exact.std()
    return {
        "error_rms": float(error.square().mean().sqrt()),
        "error_max": float(error.max()),
        "worst_row_rms": float(error.square().mean(1).sqrt().max()),
        "same_argmax": float((ours.argmax(1) == exact.argmax(1)).float().mean()),
        "finite": bool(ours.isfinite().all()),
    }


# ---- parts: what each gives is put into the report -------------------------------------------------------------------


def check_prefill(world: World) -> dict[str, Any]:
    found: dict[str, Any] = {}
    setting = world.setting
    for size in setting.prompt_sizes:
        step = [world.part(0, world.random_tokens(size, size))]
        found[f"{size} tokens"] = difference(world.by_fast(step, all_rows=True), world.by_plain(step, all_rows=True))
    cut = world.random_tokens(setting.prompt_sizes[0], 1)
    half = len(cut) // 2
    world.by_fast([world.part(0, cut[:half])])
    chunk = world.by_fast([world.part(0, cut[half:], half)])
    found["second half of a prompt"] = difference(chunk, world.by_plain([world.part(0, cut)]))
    return found


def check_plain_bfloat16(world: World) -> dict[str, Any]:
    """What rounding to bfloat16 costs the plain model on the same device: the yardstick."""
    setting = world.setting
    model = Mistral4(*load(setting.checkpoint, setting.device), torch.device(setting.device), setting.dtype)
    pool = world.new_pool(setting.device, setting.dtype)
    size = setting.prompt_sizes[0]
    step = [world.part(0, world.random_tokens(size, size))]
    batch = build_forward_batch(step, setting.block_size, world.fast.device)
    batch = replace(batch, logits_rows=torch.arange(size, device=world.fast.device))
    return difference(model.forward(batch, pool), world.by_plain(step, all_rows=True))


def check_decode(world: World) -> dict[str, Any]:
    """Teacher-forced steps after a prompt; graph and eager, with one other request and with seven, must have the same
    bits. (A request that is alone may take another form of the products; its logits are compared in numbers.)"""
    num_steps, size = (2, 2) if world.setting.small else (24, 8)
    lengths = [12 + 5 * row for row in range(size)] if world.setting.small else [30 + 41 * row for row in range(size)]
    texts = [world.random_tokens(n + num_steps, 50 + i) for i, n in enumerate(lengths)]
    for row, (text, n) in enumerate(zip(texts, lengths, strict=True)):
        world.by_fast([world.part(row, text[:n])])
    exact = [world.by_plain([world.part(row, text)], all_rows=True) for row, text in enumerate(texts)]
    many, pair, one = Decode(world, size), Decode(world, 2), Decode(world, 1)
    many.set([0] * size, lengths, range(size))
    many.capture()
    pair.set([0, 0], lengths[:2], [0, 1])
    pair.capture()
    one.set([0], lengths[:1], [0])
    one.capture()
    ours: list[list[Tensor]] = [[] for _ in texts]
    alone: list[Tensor] = []
    together: list[Tensor] = []
    same = {"graph_is_eager": True, "pair_is_batch": True}
    for step in range(num_steps):
        positions = [n + step for n in lengths]
        tokens = [text[n + step] for text, n in zip(texts, lengths, strict=True)]
        many.set(tokens, positions, range(size))
        eager = many.eager().clone()
        logits = many.replay().clone()
        same["graph_is_eager"] &= bool(torch.equal(eager, logits))
        for row in range(size) if step == 0 else (step % size,):
            both = [row, (row + 1) % size]
            pair.set([tokens[r] for r in both], [positions[r] for r in both], both)
            same["pair_is_batch"] &= bool(torch.equal(pair.replay()[0], logits[row]))
            one.set([tokens[row]], [positions[row]], [row])
            alone.append(one.replay()[0].clone())
            together.append(logits[row])
        for row in range(size):
            ours[row].append(logits[row].cpu())
    found: dict[str, Any] = {**same, "alone and in the batch": difference(torch.stack(alone), torch.stack(together))}
    for row, n in enumerate(lengths):
        found[f"behind {n} tokens"] = difference(torch.stack(ours[row]), exact[row][n : n + num_steps])
    return found


def check_padding(world: World) -> dict[str, Any]:
    """A padded batch of 3 in 4 gives what each gives beside one other."""
    rows = range(2 if world.setting.small else 3)
    for row in rows:
        world.by_fast([world.part(row, world.random_tokens(11 + row, row))])
    padded, pair = Decode(world, len(rows) + 1), Decode(world, 2)
    padded.set([5 + row for row in rows], [11 + row for row in rows], rows)
    padded.capture()
    logits = padded.replay().clone()
    same = True
    for row in rows:
        both = [row, (row + 1) % len(rows)]
        pair.set([5 + r for r in both], [11 + r for r in both], both)
        same &= bool(torch.equal(pair.eager()[0], logits[row]))
    return {"same_bits": same, "finite": bool(logits.isfinite().all())}


def check_mixed(world: World) -> dict[str, Any]:
    """Decode rows, a short chunk, a long chunk and a prompt in one pass."""
    sizes = (20, 17, 19) if world.setting.small else (90, 333, 150)
    for row, size in enumerate(sizes):
        step = [world.part(row, world.random_tokens(size, row))]
        world.by_fast(step)
        world.by_plain(step)
    step = [
        world.part(3, world.random_tokens(18 if world.setting.small else 130, 9)),
        world.part(0, world.random_tokens(1, 10), sizes[0]),
        world.part(1, world.random_tokens(5, 11), sizes[1]),
        world.part(2, world.random_tokens(15 if world.setting.small else 77, 12), sizes[2]),
    ]
    ours, exact = world.by_fast(step), world.by_plain(step)
    return {name: difference(ours[i : i + 1], exact[i : i + 1])
            for i, name in enumerate(("prompt", "decode", "short chunk", "chunk"))}  # fmt: skip


def prompts(world: World, count: int) -> tuple[str, list[list[int]]]:
    """Held-out prompts of the demo where its tokenizer can be had, else random tokens."""
    tekken = world.setting.checkpoint / "tekken.json"
    try:
        from sparkstral.demo import SKILLS, eval_items
        from tools.demo.rendering import Renderer

        renderer = Renderer(tekken)
        found = []
        for i in range(8 * count):
            (item,) = eval_items(SKILLS[i % len(SKILLS)].name, 1, 7000 + i)
            rendered = renderer.render(item.conversation)
            if rendered.spans[0][0] < 600:
                found.append(rendered.token_ids[: rendered.spans[0][0]])
            if len(found) == count:
                break
        return "demo", found
    except Exception as error:
        draw = random.Random(5)
        longest = 20 if world.setting.small else 300
        sizes = [draw.randrange(4, longest) for _ in range(count)]
        return f"random tokens ({type(error).__name__}: {error})"[:300], [
            world.random_tokens(size, 300 + i) for i, size in enumerate(sizes)
        ]


def greedy(
    world: World, texts: Sequence[list[int]], num_tokens: int, *, by_fast: bool
) -> list[list[tuple[int, float, int]]]:
    """For each prompt what is said: (token, gap of the two largest logits, the second)."""
    said: list[list[tuple[int, float, int]]] = [[] for _ in texts]
    contexts = [list(text) for text in texts]
    for row, text in enumerate(texts):
        step = [world.part(row, text)]
        logits = world.by_fast(step) if by_fast else world.by_plain(step)
        _take(said[row], contexts[row], logits[0])
    decode = Decode(world, len(texts))
    if by_fast:
        decode.set([0] * len(texts), [len(c) - 1 for c in contexts], range(len(texts)))
        decode.capture()
    for _ in range(num_tokens - 1):
        last = [context[-1] for context in contexts]
        if by_fast:
            decode.set(last, [len(c) - 1 for c in contexts], range(len(texts)))
            logits = decode.replay()
        else:
            logits = world.by_plain(
                [world.part(row, [token], len(contexts[row]) - 1) for row, token in enumerate(last)]
            )
        values, ids = logits.float().topk(2, dim=-1)
        for row, (value, pair) in enumerate(zip(values.tolist(), ids.tolist(), strict=True)):
            said[row].append((pair[0], value[0] - value[1], pair[1]))
            contexts[row].append(pair[0])
    return said


def _take(said: list[tuple[int, float, int]], context: list[int], logits: Tensor) -> None:
    values, ids = logits.float().topk(2)
    said.append((int(ids[0]), float(values[0] - values[1]), int(ids[1])))
    context.append(int(ids[0]))


def check_greedy(world: World, count: int) -> dict[str, Any]:
    kind, texts = prompts(world, count)
    num_tokens = 3 if world.setting.small else 32
    found: dict[str, Any] = {"prompts": kind, "num_prompts": len(texts), "num_tokens": num_tokens}
    equal, near, wrong = 0, [], []
    batch = world.setting.rows
    for start in range(0, len(texts), batch):
        part = texts[start : start + batch]
        ours = greedy(world, part, num_tokens, by_fast=True)
        right = greedy(world, part, num_tokens, by_fast=False)
        for i, (a, b) in enumerate(zip(ours, right, strict=True)):
            at = next((k for k in range(num_tokens) if a[k][0] != b[k][0]), None)
            ended = next((k for k in range(num_tokens) if b[k][0] == EOS_TOKEN_ID), num_tokens)
            if at is None or at > ended:
                equal += 1
                continue
            entry = {"prompt": start + i, "token": at, "ours": a[at][0], "right": b[at][0], "second": b[at][2]}
            entry["gap"] = b[at][1]
            (near if a[at][0] == b[at][2] and b[at][1] < NEAR_TIE else wrong).append(entry)
    return {**found, "equal": equal, "near_ties": near, "wrong": wrong}


def time_decode(world: World) -> dict[str, Any]:
    found: dict[str, Any] = {}
    context = 20 if world.setting.small else 300
    for size in world.setting.decode_sizes:
        decode = Decode(world, size)
        decode.set(world.random_tokens(size, 1), [context] * size, range(size))
        decode.capture()
        found[str(size)] = {"graph_ms": _time(decode.replay, world), "eager_ms": _time(decode.eager, world, 3)}
    return found


def time_prefill(world: World) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for size in (20,) if world.setting.small else (128, 1024, 4000):
        step = [world.part(0, world.random_tokens(size, 1))]
        ms = _time(lambda step=step: world.by_fast(step), world, 3)
        found[str(size)] = {"ms": ms, "tok_s": size / ms * 1e3}
    return found


def _time(call: Callable[[], object], world: World, repeats: int = 20) -> float:
    """Median milliseconds, synchronised."""
    if world.setting.small:
        repeats = 1
    else:
        call()
        torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        if not world.setting.small:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def versions() -> dict[str, str]:
    import triton

    found = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    if torch.cuda.is_available():
        found |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=95.0, help="start no part after")
    parser.add_argument("--no-workers", action="store_true", help="compile in this process alone")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    scratch = tempfile.TemporaryDirectory()
    checkpoint = arguments.checkpoint or DEMO
    if arguments.device == "cpu" and arguments.checkpoint is None:
        checkpoint = write_native(Path(scratch.name), TinyModel())
    setting = Setting(arguments.device, checkpoint)
    report: dict[str, Any] = describe_run("model check") | {"checkpoint": checkpoint.name}
    report["parts"] = parts = {}

    def run(name: str, part: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        if started - begin > arguments.seconds:
            parts[name] = {"skipped": f"no time left of {arguments.seconds} s"}
            return None
        result = None
        try:
            result = part()
            parts[name] = {"result": result if isinstance(result, dict) else "made"}
        except Exception as error:
            parts[name] = {"failed": f"{type(error).__name__}: {error}"[:1500]}
            parts[name]["traceback"] = traceback.format_exc()[-3000:]
        parts[name]["seconds"] = round(time.perf_counter() - started, 2)
        print(name, json.dumps(parts[name])[:2500], flush=True)
        arguments.output.write_text(json.dumps(report, indent=1))
        return result

    if not setting.small and not arguments.no_workers:
        config = plan_load(setting.checkpoint).config
        run("compile", lambda: compile_variants(config, limits(setting), setting.block_size, 60.0))
    world = run("load", lambda: World(setting))
    if world is not None:
        world.num_variants = 0 if setting.small else cached_variants()
        count = 2 if setting.small else arguments.prompts
        for name, part in (
            ("prefill", check_prefill), ("decode", check_decode), ("mixed", check_mixed), ("padding", check_padding),
            ("time decode", time_decode), ("runner", check_runner), ("time loop", time_loop),
            ("greedy", partial(check_greedy, count=count)),
            ("plain bfloat16", check_plain_bfloat16), ("time prefill", time_prefill),
        ):  # fmt: skip
            run(name, partial(part, world))
    report["seconds"] = time.perf_counter() - begin
    arguments.output.write_text(json.dumps(report, indent=1))
    return int(any("failed" in part for part in parts.values()))


if __name__ == "__main__":
    sys.exit(main())
